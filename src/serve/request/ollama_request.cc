#include "src/serve/request/ollama_request.h"

#include <fmt/format.h>

#include <utility>

#include "src/serve/request/common_fields.h"
#include "src/serve/request/fields.h"
#include "src/serve/request/messages.h"
#include "src/serve/request/ollama_options.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

Thinking thinking_of(Fields& fields) {
  const BodyJson* value = fields.find("think");
  if (value == nullptr) return Thinking::by_template;
  if (value->is_boolean()) return value->get<bool>() ? Thinking::on : Thinking::off;
  if (*value == "low") return Thinking::low;
  if (*value == "medium") return Thinking::medium;
  if (*value == "high" || *value == "max") return Thinking::high;
  fields.refuse("think", *value, "true, false, \"low\", \"medium\", \"high\" or \"max\"");
}

/// The fields of both routes but the context and what is asked.
void take_fields(Fields& fields, std::string_view body, AnswerRequest& request) {
  request.model = fields.needed_text("model");
  request.stream = fields.flag("stream").value_or(true);
  request.thinking = thinking_of(fields);
  take_ollama_options(fields, request.options);
  take_chat_logprobs(fields, request.options);
  request.schema = take_ollama_format(fields, body);
  const BodyJson* keep_alive = fields.find("keep_alive");
  if (keep_alive != nullptr && !keep_alive->is_number() && !keep_alive->is_string())
    fields.refuse("keep_alive", *keep_alive, "a number of seconds, or a text such as \"5m\"");
  fields.flag("truncate");
  fields.flag("shift");
}

/// The name of a context. A list is the tokens of an earlier answer, as Ollama's /api/generate
/// once kept a conversation.
std::string context_name(Fields& fields) {
  const BodyJson* value = fields.find("context");
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  if (value->is_array() && value->empty()) return {};
  if (!value->is_array()) fields.refuse("context", *value, "the name of a context");
  throw Problem(400,
                fmt::format("{}: context is a list of tokens, which topkv serve does not support; "
                            "send the conversation as messages to POST /api/chat",
                            request_body),
                "context", "unsupported_value");
}

[[noreturn]] void refuse_outside_chats(const char* field) {
  throw Problem(400,
                fmt::format("{}: {} is for models and contexts with a chat template, without raw; "
                            "leave it out",
                            request_body, field),
                field);
}

}  // namespace

OllamaRequest parse_ollama_generate(std::string_view body, const InTemplateFn& in_template) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  OllamaRequest request;
  AnswerRequest& answer = request.answer;
  take_fields(fields, body, answer);
  answer.context = context_name(fields);
  std::string prompt = fields.text("prompt").value_or("");
  std::string system = fields.text("system").value_or("");
  const bool raw = fields.flag("raw").value_or(false);
  fields.only("suffix", {""});
  fields.only("template", {""});
  fields.only("images", {BodyJson::array()});
  fields.done();
  request.loads = prompt.empty();
  answer.chat = !raw && in_template(answer);
  if (!answer.chat) {
    const bool thinks =
        answer.thinking != Thinking::by_template && answer.thinking != Thinking::off;
    if (thinks || !system.empty()) refuse_outside_chats(thinks ? "think" : "system");
    answer.prompts.emplace_back(std::move(prompt));
    return request;
  }
  if (!system.empty()) answer.messages.push_back({"system", std::move(system)});
  answer.messages.push_back({"user", std::move(prompt)});
  return request;
}

OllamaRequest parse_ollama_chat(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  OllamaRequest request;
  request.answer.chat = true;
  take_fields(fields, body, request.answer);
  request.answer.context = fields.text("context").value_or("");
  take_ollama_conversation(fields, body, request.answer);
  check_schema_beside_tools(request.answer.schema, request.answer.tools);
  fields.done();
  request.loads = request.answer.messages.empty();
  return request;
}

std::string parse_ollama_show(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  const std::optional<std::string> old = fields.text("name");  // its name in older clients
  std::string name = old && fields.find("model") == nullptr ? *old : fields.needed_text("model");
  fields.flag("verbose");
  for (const char* key : {"system", "template"}) fields.only(key, {""});
  fields.only("options", {BodyJson::object()});
  fields.done();
  return name;
}

}  // namespace topkv::serve
