#include "src/serve/request/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/serve/request/common_fields.h"
#include "src/serve/request/fields.h"
#include "src/serve/request/messages.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
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
  if (const auto most = read_max_tokens(fields, "max_completion_tokens", 1, request.options)) {
    if (request.options.max_tokens && request.options.max_tokens != most)
      throw Problem(
          400,
          fmt::format("{}: max_tokens is {} and max_completion_tokens {}; give one of them",
                      request_body, *request.options.max_tokens, *most),
          "max_completion_tokens");
    request.options.max_tokens = most;
  }
  take_conversation(fields, body, request);
  take_chat_logprobs(fields, request.options);
  if (AnswerSchema schema = take_response_format(fields, body); !schema.text.empty()) {
    check_schema_beside_tools(schema, request.tools);
    request.schema = std::move(schema);
  }
  fields.only("modalities", {BodyJson::array({"text"})});
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
