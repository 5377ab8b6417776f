// Bodies of requests to topkv serve. What is taken is within its limits.
#include <algorithm>
#include <variant>
#include <vector>

#include "src/serve/request/ollama_request.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"
#include "src/serve/request/responses_request.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;
namespace serve = topkv::serve;

namespace {

/// Whether it was taken. A refusal is an error of a client that fits on a line.
template <class Parse>
void parse(const Parse& parse_body, std::string_view body) {
  try {
    fuzz::accepts([&] { parse_body(body); });
  } catch (const serve::Problem& problem) {
    fuzz::require(problem.status() == 400, "another status", problem.message());
    fuzz::check_message(topkv::Error(problem.message()), "request body", fuzz::Memory::bounded);
    fuzz::check_message(topkv::Error(error_body(problem)), "{\"error\":", fuzz::Memory::bounded);
  }
}

void check(const serve::AnswerRequest& request) {
  fuzz::require(request.options.choices >= 1 && request.options.choices <= serve::max_choices,
                "choices");
  fuzz::require(request.answers() >= 1 && request.answers() <= serve::max_answers, "answers");
  fuzz::require(request.chat || !request.prompts.empty(), "a completion without a prompt");
  fuzz::require(request.options.logit_bias.size() <= serve::max_biases, "biases");
  for (const topkv::TokenBias& one : request.options.logit_bias)
    fuzz::require(one.token >= 0 && one.bias >= -100 && one.bias <= 100, "a bias");
  for (const serve::Prompt& prompt : request.prompts)
    if (const auto* ids = std::get_if<std::vector<topkv::Token>>(&prompt))
      fuzz::require(!ids->empty() && *std::ranges::min_element(*ids) >= 0, "ids of a prompt");
  fuzz::require(request.options.stop.size() <= serve::max_stops, "stop strings");
  fuzz::require(!request.chat || !request.messages.empty(), "a chat without messages");
}

}  // namespace

FUZZ_TARGET(serve_request)(const std::uint8_t* data, std::size_t size) {
  const std::string_view body = fuzz::text_of(data, size);
  parse([](std::string_view text) { check(serve::parse_completion(text)); }, body);
  parse([](std::string_view text) { check(serve::parse_chat(text)); }, body);
  parse(
      [](std::string_view text) {
        const serve::ContextRequest request = serve::parse_context(text);
        fuzz::require(serve::is_context_name(request.name), "a name that is none", request.name);
      },
      body);
  for (const bool in_template : {false, true})
    parse(
        [&](std::string_view text) {
          check(serve::parse_ollama_generate(text, [&](const serve::AnswerRequest&) {
                  return in_template;
                }).answer);
        },
        body);
  parse(
      [](std::string_view text) {
        const serve::OllamaRequest request = serve::parse_ollama_chat(text);
        if (!request.loads) check(request.answer);
      },
      body);
  parse([](std::string_view text) { serve::parse_ollama_show(text); }, body);
  parse([](std::string_view text) { check(serve::parse_responses(text).answer); }, body);
  return 0;
}
