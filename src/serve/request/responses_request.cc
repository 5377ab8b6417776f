#include "src/serve/request/responses_request.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/serve/request/common_fields.h"
#include "src/serve/request/fields.h"
#include "src/serve/request/json_text.h"
#include "src/serve/request/messages.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/responses_input.h"

namespace topkv::serve {
namespace {

/// Refuses a field of what only a server does that keeps responses.
void refuse_kept(Fields& fields, const char* key) {
  if (const BodyJson* value = fields.find(key); value != nullptr)
    throw Problem(400,
                  fmt::format("{}: {} is {}, but topkv serve stores no responses; send the whole "
                              "conversation as input",
                              request_body, key, shown(*value)),
                  key, "unsupported_value");
}

Thinking effort_of(Fields& fields, nlohmann::ordered_json& repeated) {
  repeated["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const BodyJson* value = fields.find("reasoning");
  if (value == nullptr) return Thinking::by_template;
  Fields reasoning(*value, "reasoning");
  for (const char* key : {"summary", "generate_summary"}) reasoning.text(key);
  const std::optional<std::string> effort = reasoning.text("effort");
  reasoning.done();
  if (!effort) return Thinking::by_template;
  repeated["reasoning"]["effort"] = *effort;
  if (*effort == "none") return Thinking::off;
  if (*effort == "minimal" || *effort == "low") return Thinking::low;
  if (*effort == "medium") return Thinking::medium;
  if (*effort == "high" || *effort == "xhigh") return Thinking::high;
  reasoning.refuse("effort", BodyJson(*effort), "none, minimal, low, medium, high or xhigh");
}

/// The tools as the template sees them.
Tools functions_of(Fields& fields, const nlohmann::ordered_json& ordered) {
  Tools list = Tools::array();
  const BodyJson* tools = fields.find("tools");
  if (tools == nullptr) return list;
  if (!tools->is_array() || tools->size() > max_tools)
    fields.refuse("tools", *tools, fmt::format("a list of up to {} tools", max_tools));
  for (std::size_t i = 0; i < tools->size(); ++i) {
    Fields tool((*tools)[i], fmt::format("tools[{}]", i));
    tool.only("type", {"function"});
    nlohmann::ordered_json function;
    function["name"] = tool.needed_text("name");
    if (function["name"] == "") tool.refuse("name", BodyJson(""), "some text");
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (tool.find("parameters") != nullptr)
      function["parameters"] = ordered["tools"][i]["parameters"];
    tool.flag("strict");  // tool_choice alone holds a call to its schema
    tool.done();
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

void take_tools(Fields& fields, const nlohmann::ordered_json& ordered, ResponsesRequest& request) {
  const ToolChoice choice = take_tool_choice(fields, true);
  const bool parallel = fields.flag("parallel_tool_calls").value_or(true);
  Tools list = functions_of(fields, ordered);
  request.repeated["tool_choice"] = choice.none ? "none" : "auto";
  if (choice.required) request.repeated["tool_choice"] = ordered["tool_choice"];
  request.repeated["parallel_tool_calls"] = parallel;
  request.repeated["tools"] = Tools::array();
  for (const Tools& tool : list) {
    nlohmann::ordered_json flat = {{"type", "function"}};
    flat.update(tool["function"]);
    if (!flat.contains("parameters")) flat["parameters"] = nullptr;
    flat["strict"] = false;
    request.repeated["tools"].push_back(std::move(flat));
  }
  request.answer.one_call = !parallel;
  if (choice.required) request.answer.schema = schema_of_call(list, choice);
  if (list.empty() || choice.none) return;
  request.answer.variables = json_text({{"tools", list}});
  request.answer.tools = std::move(list);
}

void take_stream(Fields& fields, AnswerRequest& request) {
  request.stream = fields.flag("stream").value_or(false);
  const BodyJson* value = fields.find("stream_options");
  if (value == nullptr) return;
  Fields options(*value, "stream_options");
  options.flag("include_obfuscation");  // events have none
  options.done();
}

void take_text(Fields& fields, const nlohmann::ordered_json& ordered, ResponsesRequest& request) {
  const BodyJson* value = fields.find("text");
  if (value == nullptr) return;
  Fields text(*value, "text");
  AnswerSchema schema = take_text_format(text, ordered["text"]);
  if (!schema.text.empty()) {
    check_schema_beside_tools(schema, request.answer.tools);
    request.answer.schema = std::move(schema);
    request.repeated["text"] = {{"format", ordered["text"]["format"]}};
  }
  text.only("verbosity", {"medium"});
  text.done();
}

/// What is given beside the texts, where it is what topkv does anyway.
void take_unsupported(Fields& fields) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"})
    refuse_kept(fields, key);
  fields.only("background", {false});
  fields.only("truncation", {"disabled"});
  // Thinking is in the response as it is, not encrypted.
  fields.only("include", {BodyJson::array(), BodyJson::array({"reasoning.encrypted_content"})});
  fields.only("top_logprobs", {0});
  fields.find("prompt_cache_retention");  // for caches of prompts elsewhere
}

}  // namespace

ResponsesRequest parse_responses(std::string_view body) {
  const nlohmann::ordered_json ordered = parse_ordered_body(body);
  const BodyJson json = ordered;
  Fields fields(json);
  ResponsesRequest request;
  AnswerRequest& answer = request.answer;
  answer.chat = true;
  answer.model = fields.text("model").value_or("");
  answer.context = fields.text("context").value_or("");
  answer.options.max_tokens = read_max_tokens(fields, "max_output_tokens", 1, answer.options);
  take_sampling(fields, answer.options, "repetition_penalty");
  take_seed(fields, answer.options);
  take_stream(fields, answer);
  answer.thinking = effort_of(fields, request.repeated);
  const std::optional<std::string> instructions = fields.text("instructions");
  if (instructions && !instructions->empty()) answer.messages.push_back({"system", *instructions});
  take_responses_input(fields, ordered, answer.messages);
  take_tools(fields, ordered, request);
  take_text(fields, ordered, request);
  take_unsupported(fields);
  const auto repeat = [&](const char* key, nlohmann::ordered_json otherwise) {
    request.repeated[key] = fields.find(key) != nullptr ? ordered[key] : std::move(otherwise);
  };
  repeat("instructions", nullptr);
  repeat("max_output_tokens", nullptr);
  repeat("temperature", nullptr);
  repeat("top_p", nullptr);
  repeat("metadata", nlohmann::ordered_json::object());
  repeat("user", nullptr);
  fields.done();
  return request;
}

}  // namespace topkv::serve
