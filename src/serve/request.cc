#include "src/serve/request.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/json_file.h"
#include "src/serve/common_fields.h"
#include "src/serve/fields.h"
#include "src/serve/problem.h"

namespace topkv::serve {
namespace {

constexpr std::int64_t max_messages = 4096;

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
    fields.done();
  }
  return text;
}

}  // namespace

bool is_context_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

AnswerRequest parse_chat(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  AnswerRequest request;
  request.chat = true;
  take_common(fields, request);
  if (const auto most = fields.integer("max_completion_tokens", 1, INT64_MAX)) {
    if (request.options.max_tokens && request.options.max_tokens != most)
      throw Problem(
          400,
          fmt::format("{}: max_tokens is {} and max_completion_tokens {}; give one of them",
                      request_body, *request.options.max_tokens, *most),
          "max_completion_tokens");
    request.options.max_tokens = most;
  }
  const BodyJson* messages = fields.find("messages");
  if (messages == nullptr)
    throw Problem(400, fmt::format("{}: messages is missing", request_body), "messages");
  if (!messages->is_array() || messages->empty() || std::ssize(*messages) > max_messages)
    fields.refuse("messages", *messages, fmt::format("1 to {} messages", max_messages));
  for (const BodyJson& message : *messages) {
    const std::string name = fmt::format("messages[{}]", request.messages.size());
    Fields of_message(message, name);
    std::string role = of_message.needed_text("role");
    const BodyJson* content = of_message.find("content");
    if (content == nullptr)
      throw Problem(400, fmt::format("{}: {}.content is missing", request_body, name),
                    name + ".content");
    request.messages.push_back({std::move(role), text_of_content(*content, name + ".content")});
    of_message.done();
  }
  const bool logprobs = fields.flag("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, max_top_logprobs);
  if (top && !logprobs)
    throw Problem(
        400, fmt::format("{}: top_logprobs is for requests with \"logprobs\": true", request_body),
        "top_logprobs");
  if (logprobs) request.options.logprobs = top.value_or(0);
  fields.only("response_format", {BodyJson{{"type", "text"}}});
  fields.only("modalities", {BodyJson::array({"text"})});
  fields.only("tools", {BodyJson::array()});
  fields.only("tool_choice", {"none"});
  fields.done();
  return request;
}

ContextRequest parse_context(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  ContextRequest request;
  request.name = fields.needed_text("name");
  if (!is_context_name(request.name))
    fields.refuse("name", request.name,
                  "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', '.' not first");
  request.text = fields.needed_text("text");
  if (request.text.empty()) fields.refuse("text", request.text, "some text");
  request.chat = fields.flag("chat").value_or(false);
  request.system = fields.text("system").value_or("");
  if (!request.system.empty() && !request.chat)
    throw Problem(
        400,
        fmt::format("{}: a plain text has no system message; add \"chat\": true", request_body),
        "system");
  fields.done();
  return request;
}

}  // namespace topkv::serve
