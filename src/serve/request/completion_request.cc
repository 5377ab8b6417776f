// POST /v1/completions.
#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "src/serve/request/common_fields.h"
#include "src/serve/request/fields.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"

namespace topkv::serve {
namespace {

constexpr const char* prompt_forms =
    "a string, an array of strings, an array of token ids, or an array of such arrays";

std::vector<Token> ids_of(const Fields& fields, const BodyJson& array) {
  std::vector<Token> ids;
  for (const BodyJson& id : array) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() > std::numeric_limits<Token>::max())
      fields.refuse("prompt", id, prompt_forms);
    ids.push_back(id.get<Token>());
  }
  return ids;
}

std::vector<Prompt> prompts_of(Fields& fields) {
  const BodyJson* value = fields.find("prompt");
  if (value == nullptr)
    throw Problem(400, fmt::format("{}: prompt is missing", request_body), "prompt");
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->empty()) fields.refuse("prompt", *value, prompt_forms);
  if (value->front().is_number()) return {ids_of(fields, *value)};
  if (std::ssize(*value) > max_answers)
    throw Problem(400,
                  fmt::format("{}: prompt has {} prompts; expected at most {}", request_body,
                              value->size(), max_answers),
                  "prompt");
  std::vector<Prompt> prompts;
  for (const BodyJson& one : *value) {
    if (one.type() != value->front().type()) fields.refuse("prompt", one, prompt_forms);
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array() && !one.empty()) {
      prompts.emplace_back(ids_of(fields, one));
    } else {
      fields.refuse("prompt", one, prompt_forms);
    }
  }
  return prompts;
}

}  // namespace

AnswerRequest parse_completion(std::string_view body) {
  const BodyJson json = parse_body(body);
  Fields fields(json);
  AnswerRequest request;
  request.echo = fields.flag("echo").value_or(false);
  take_common(fields, request, request.echo ? 0 : 1);  // 0: the prompt alone, to be scored
  request.prompts = prompts_of(fields);
  if (request.answers() > max_answers)
    throw Problem(
        400,
        fmt::format("{}: n is {}, for each of {} prompts; expected at most {} answers",
                    request_body, request.options.choices, request.prompts.size(), max_answers),
        "n");
  request.options.logprobs = fields.integer("logprobs", 0, max_top_logprobs);
  fields.only("suffix", {""});
  if (const auto best_of = fields.integer("best_of", 1, max_choices))
    fields.only("best_of", {request.options.choices});
  fields.done();
  return request;
}

}  // namespace topkv::serve
