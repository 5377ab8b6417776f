#include "src/serve/request/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/format/ordered_json.h"
#include "src/serve/request/json_text.h"
#include "src/serve/request/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::size_t max_variables = 64;

std::string text_of_content(const BodyJson& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw Problem(400,
                  fmt::format("{}: {} is {}; expected a string, or parts of text", request_body,
                              name, shown(content)),
                  name);
  std::string text;
  for (const BodyJson& part : content) {
    Fields fields(part, name);
    fields.only("type", {"text"});
    text += fields.needed_text("text");
    fields.find("cache_control");  // for caches of prompts elsewhere
    fields.find("annotations");
    fields.done();
  }
  return text;
}

Ordered calls_of(Fields& message, const BodyJson& calls, const Ordered& ordered,
                 const std::string& of, MessageForm form) {
  if (!calls.is_array() || calls.size() > max_tools)
    message.refuse("tool_calls", calls, fmt::format("a list of up to {} calls", max_tools));
  Ordered list = Ordered::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("{}.tool_calls[{}]", of, i);
    Fields call(calls[i], name);
    const std::optional<std::string> id = call.text("id");
    call.only("type", {"function"});
    call.find("index");  // of a stream's pieces, which some clients send back
    const BodyJson* function = call.find("function");
    if (function == nullptr)
      throw Problem(400, fmt::format("{}: {}.function is missing", request_body, name), name);
    Fields called(*function, name + ".function");
    if (form == MessageForm::ollama) called.find("index");
    Ordered made;
    if (id) made["id"] = *id;
    made["type"] = "function";
    made["function"]["name"] = called.needed_text("name");
    const BodyJson* arguments = called.find("arguments");
    made["function"]["arguments"] =
        arguments == nullptr ? Ordered::object()
                             : arguments_of_call(*arguments, ordered[i]["function"]["arguments"],
                                                 name + ".function.arguments");
    called.done();
    call.done();
    list.push_back(std::move(made));
  }
  return list;
}

/// ordered: null where no message has tool calls.
ChatMessage message_of(const BodyJson& given, const Ordered* ordered, const std::string& name,
                       MessageForm form) {
  const bool ollama = form == MessageForm::ollama;
  Fields fields(given, name);
  ChatMessage message;
  Ordered more = Ordered::object();
  message.role = fields.needed_text("role");
  for (const char* key : {"name", "tool_call_id"})
    if (const std::optional<std::string> text = fields.text(key)) more[key] = *text;
  std::optional<std::string> reasoning = fields.text(ollama ? "thinking" : "reasoning_content");
  if (ollama) {
    std::ranges::transform(message.role, message.role.begin(),
                           [](unsigned char c) { return std::tolower(c); });
    if (const std::optional<std::string> tool = fields.text("tool_name")) more["name"] = *tool;
    fields.only("images", {BodyJson::array()});
  } else {
    if (const std::optional<std::string> other = fields.text("reasoning"); !reasoning)
      reasoning = other;
    fields.find("annotations");
    fields.find("cache_control");
    fields.only("refusal", {""});
    fields.only("function_call", {nullptr});
    fields.only("audio", {nullptr});
  }
  add_reasoning(reasoning.value_or(""), more);
  const BodyJson* calls = fields.find("tool_calls");
  const bool has_calls = calls != nullptr && !(calls->is_array() && calls->empty());
  if (has_calls)
    more["tool_calls"] = calls_of(fields, *calls, (*ordered)["tool_calls"], name, form);
  const BodyJson* content = fields.find("content");
  if (content != nullptr)
    message.content = text_of_content(*content, name + ".content");
  else if (!has_calls && !ollama)
    throw Problem(400, fmt::format("{}: {}.content is missing", request_body, name),
                  name + ".content");
  fields.done();
  if (!more.empty()) message.fields = json_text(more);
  return message;
}

/// The tools as the template sees them.
Tools tools_of(Fields& fields, const BodyJson& tools, const Ordered& ordered) {
  if (!tools.is_array() || tools.size() > max_tools)
    fields.refuse("tools", tools, fmt::format("a list of up to {} tools", max_tools));
  Tools list = Tools::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    Fields tool(tools[i], name);
    tool.only("type", {"function"});
    tool.find("cache_control");
    const BodyJson* function = tool.find("function");
    if (function == nullptr)
      throw Problem(400, fmt::format("{}: {}.function is missing", request_body, name), name);
    tool.done();
    Fields of_function(*function, name + ".function");
    if (of_function.needed_text("name").empty())
      of_function.refuse("name", (*function)["name"], "some text");
    Ordered kept = ordered[i]["function"];
    kept.erase("strict");  // tool_choice alone holds a call to its schema
    list.push_back({{"type", "function"}, {"function", std::move(kept)}});
  }
  return list;
}

/// The body with the order of its keys, where something of it is written out again.
std::optional<Ordered> ordered_body(std::string_view body, const BodyJson* messages,
                                    const BodyJson* tools, const BodyJson* variables) {
  const auto calls = [](const BodyJson& message) {
    return message.is_object() && message.contains("tool_calls");
  };
  if (tools == nullptr && variables == nullptr &&
      (messages == nullptr || std::ranges::none_of(*messages, calls)))
    return {};
  return parse_ordered_body(body);
}

void take_messages(const BodyJson& messages, const std::optional<Ordered>& ordered,
                   MessageForm form, AnswerRequest& request) {
  for (std::size_t i = 0; i < messages.size(); ++i)
    request.messages.push_back(message_of(messages[i],
                                          ordered ? &(*ordered)["messages"][i] : nullptr,
                                          fmt::format("messages[{}]", i), form));
}

const BodyJson* messages_in(Fields& fields, std::int64_t fewest) {
  const BodyJson* messages = fields.find("messages");
  if (messages != nullptr && (!messages->is_array() || std::ssize(*messages) < fewest ||
                              std::ssize(*messages) > max_messages))
    fields.refuse("messages", *messages, fmt::format("{} to {} messages", fewest, max_messages));
  return messages;
}

}  // namespace

Ordered parse_ordered_body(std::string_view body) {
  try {
    return parse_ordered_json(body, request_body);
  } catch (const FileError& error) {
    throw Problem(400, error.what(), {}, "invalid_json");
  }
}

Ordered arguments_of_call(const BodyJson& given, const Ordered& ordered, const std::string& name) {
  if (given.is_object()) return ordered;
  if (given.is_string()) {
    const auto& text = given.get_ref<const std::string&>();
    if (text.empty()) return Ordered::object();  // of a function without parameters
    try {
      Ordered object = parse_ordered_json(text, name);
      if (object.is_object()) return object;
    } catch (const FileError&) {
      // Refused below.
    }
  }
  throw Problem(400,
                fmt::format("{}: {} is {}; expected the text of a JSON object", request_body, name,
                            shown(given)),
                name);
}

void add_reasoning(const std::string& reasoning, Ordered& fields) {
  if (reasoning.empty()) return;
  for (const char* key : {"reasoning_content", "thinking"}) fields[key] = reasoning;
}

void take_conversation(Fields& fields, std::string_view body, AnswerRequest& request) {
  const BodyJson* messages = messages_in(fields, 1);
  if (messages == nullptr)
    throw Problem(400, fmt::format("{}: messages is missing", request_body), "messages");
  const BodyJson* tools = fields.find("tools");
  const BodyJson* variables = fields.find("chat_template_kwargs");
  std::optional<Ordered> ordered = ordered_body(body, messages, tools, variables);
  take_messages(*messages, ordered, MessageForm::openai, request);

  Ordered seen = Ordered::object();
  if (variables != nullptr) {
    if (!variables->is_object() || variables->size() > max_variables)
      fields.refuse("chat_template_kwargs", *variables,
                    fmt::format("an object of up to {} variables", max_variables));
    seen = (*ordered)["chat_template_kwargs"];
    for (const char* key : {"messages", "tools", "add_generation_prompt"})
      if (seen.contains(key))
        throw Problem(400,
                      fmt::format("{}: chat_template_kwargs has \"{}\", which is not a variable of "
                                  "its own; leave it out",
                                  request_body, key),
                      "chat_template_kwargs");
  }
  if (const std::optional<std::string> effort = fields.text("reasoning_effort"))
    seen["reasoning_effort"] = *effort;
  const ToolChoice choice = take_tool_choice(fields, false);
  if (tools != nullptr) {
    Tools list = tools_of(fields, *tools, (*ordered)["tools"]);
    if (!list.empty() && !choice.none) {
      seen["tools"] = list;
      request.tools = std::move(list);
    }
  }
  if (choice.required) request.schema = schema_of_call(request.tools, choice);
  request.one_call = !fields.flag("parallel_tool_calls").value_or(true);
  if (!seen.empty()) request.variables = json_text(seen);
}

void take_ollama_conversation(Fields& fields, std::string_view body, AnswerRequest& request) {
  const BodyJson* messages = messages_in(fields, 0);
  const BodyJson* tools = fields.find("tools");
  std::optional<Ordered> ordered = ordered_body(body, messages, tools, nullptr);
  if (messages != nullptr) take_messages(*messages, ordered, MessageForm::ollama, request);
  if (tools == nullptr) return;
  request.tools = tools_of(fields, *tools, (*ordered)["tools"]);
  if (!request.tools.empty()) request.variables = json_text({{"tools", request.tools}});
}

}  // namespace topkv::serve
