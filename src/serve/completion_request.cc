// POST /v1/completions.
#include <fmt/format.h>

#include "src/serve/common_fields.h"
#include "src/serve/fields.h"
#include "src/serve/problem.h"
#include "src/serve/request.h"

namespace topkv::serve {

AnswerRequest parse_completion(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  AnswerRequest request;
  take_common(fields, request);
  const BodyJson* prompt = fields.find("prompt");
  if (prompt == nullptr)
    throw Problem(400, fmt::format("{}: prompt is missing", request_body), "prompt");
  if (prompt->is_array() && prompt->size() == 1) prompt = &prompt->front();
  if (!prompt->is_string())
    fields.refuse("prompt", *prompt, "one string; send several prompts as requests of their own");
  request.prompt = prompt->get<std::string>();
  request.options.logprobs = fields.integer("logprobs", 0, max_top_logprobs);
  fields.only("echo", {false});
  fields.only("suffix", {""});
  if (const auto best_of = fields.integer("best_of", 1, max_choices))
    fields.only("best_of", {request.options.choices});
  fields.done();
  return request;
}

}  // namespace topkv::serve
