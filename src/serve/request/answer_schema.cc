#include "src/serve/request/answer_schema.h"

#include <fmt/format.h>

#include <optional>

#include "src/core/format/json_file.h"
#include "src/serve/request/json_text.h"
#include "src/serve/request/messages.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr const char* any_object = R"({"type": "object", "additionalProperties": true})";
/// What stands beside "schema" wherever that is.
void take_notes(Fields& fields) {
  fields.text("name");
  fields.text("description");
  fields.flag("strict");  // an answer always conforms
  fields.done();
}

AnswerSchema schema_in(Fields& fields, const Ordered& ordered, const std::string& field) {
  const BodyJson* schema = fields.find("schema");
  if (schema == nullptr)
    throw Problem(400, fmt::format("{}: {}.schema is missing", request_body, field), field);
  if (!schema->is_object()) fields.refuse("schema", *schema, "an object");
  return {.text = json_text(ordered["schema"]), .field = field};
}

/// Takes the type of a format. Returns what it asks for by itself; empty: a schema follows.
std::optional<AnswerSchema> take_type(Fields& format, const std::string& field) {
  const std::string type = format.needed_text("type");
  if (type == "json_schema") return {};
  if (type != "text" && type != "json_object")
    format.refuse("type", BodyJson(type), "text, json_object or json_schema");
  format.done();
  return type == "text" ? AnswerSchema{} : AnswerSchema{.text = any_object, .field = field};
}

/// References within a schema that is moved to a place of another one.
void move_references(Ordered& json, const std::string& place) {
  if (json.is_array()) {
    for (Ordered& one : json) move_references(one, place);
    return;
  }
  if (!json.is_object()) return;
  for (auto& [key, value] : json.items()) {
    if (key == "$ref" && value.is_string()) {
      const auto& ref = value.get_ref<const std::string&>();
      if (ref.starts_with('#')) value = place + ref.substr(1);
    } else {
      move_references(value, place);
    }
  }
}

}  // namespace

AnswerSchema take_response_format(Fields& fields, std::string_view body) {
  const BodyJson* value = fields.find("response_format");
  if (value == nullptr) return {};
  Fields format(*value, "response_format");
  if (const auto plain = take_type(format, "response_format")) return *plain;
  const std::string name = "response_format.json_schema";
  const BodyJson* of = format.find("json_schema");
  if (of == nullptr) throw Problem(400, fmt::format("{}: {} is missing", request_body, name), name);
  format.done();
  Fields json_schema(*of, name);
  AnswerSchema schema =
      schema_in(json_schema, parse_ordered_body(body)["response_format"]["json_schema"], name);
  take_notes(json_schema);
  return schema;
}

AnswerSchema take_text_format(Fields& text, const Ordered& ordered) {
  const BodyJson* value = text.find("format");
  if (value == nullptr) return {};
  Fields format(*value, "text.format");
  if (const auto plain = take_type(format, "text.format")) return *plain;
  AnswerSchema schema = schema_in(format, ordered["format"], "text.format");
  take_notes(format);
  return schema;
}

AnswerSchema take_ollama_format(Fields& fields, std::string_view body) {
  const BodyJson* value = fields.find("format");
  if (value == nullptr || *value == "") return {};
  if (*value == "json") return {.text = any_object, .field = "format"};
  if (!value->is_object()) fields.refuse("format", *value, "\"json\", or a JSON schema");
  return {.text = json_text(parse_ordered_body(body)["format"]), .field = "format"};
}

ToolChoice take_tool_choice(Fields& fields, bool responses) {
  const BodyJson* value = fields.find("tool_choice");
  if (value == nullptr || *value == "auto") return {};
  if (*value == "none") return {.none = true};
  if (*value == "required") return {.required = true};
  if (!value->is_object())
    fields.refuse("tool_choice", *value, "auto, none, required or a function");
  Fields choice(*value, "tool_choice");
  choice.only("type", {"function"});
  ToolChoice named = {.required = true};
  if (responses) {
    named.name = choice.needed_text("name");
  } else {
    const BodyJson* function = choice.find("function");
    if (function == nullptr)
      throw Problem(400, fmt::format("{}: tool_choice.function is missing", request_body),
                    "tool_choice");
    Fields of_function(*function, "tool_choice.function");
    named.name = of_function.needed_text("name");
    of_function.done();
  }
  choice.done();
  return named;
}

AnswerSchema schema_of_call(const Tools& tools, const ToolChoice& choice) {
  Ordered schema = {{"anyOf", Ordered::array()}, {"$defs", Ordered::object()}};
  for (const Ordered& tool : tools) {
    const Ordered& function = tool["function"];
    if (!choice.name.empty() && function["name"] != choice.name) continue;
    const std::string place = fmt::format("tool{}", schema["$defs"].size());
    Ordered parameters = {{"type", "object"}};
    if (const auto given = function.find("parameters");
        given != function.end() && given->is_object() && !given->empty())
      parameters = *given;
    move_references(parameters, "#/$defs/" + place);
    schema["$defs"][place] = std::move(parameters);
    schema["anyOf"].push_back(
        {{"type", "object"},
         {"properties",
          {{"name", {{"const", function["name"]}}}, {"arguments", {{"$ref", "#/$defs/" + place}}}}},
         {"required", {"name", "arguments"}}});
  }
  if (schema["anyOf"].empty())
    throw Problem(
        400,
        choice.name.empty()
            ? fmt::format("{}: tool_choice is required, and there are no tools", request_body)
            : fmt::format("{}: tool_choice names the function {}; expected one of tools",
                          request_body, shown(BodyJson(choice.name))),
        "tool_choice");
  return {.text = json_text(schema), .field = "tool_choice", .calls = true};
}

void check_schema_beside_tools(const AnswerSchema& schema, const Tools& tools) {
  if (schema.text.empty() || tools.empty()) return;
  throw Problem(400,
                fmt::format("{}: {} beside tools: an answer that conforms to it could call none; "
                            "leave one of them out, or give \"tool_choice\": \"none\"",
                            request_body, schema.field),
                schema.field);
}

}  // namespace topkv::serve
