// Milliseconds of a decode step by the number of its tokens: what drafts cost. Then what drafts
// gain with these steps, at most: for an answer that quotes its text without a mistake.
//
//   draft_steps_bench [the flags of rates_bench] [model directory [tokens…]]
//
// The prompt is one token again and again, which most models go on with, so that steps have drafts.
// A row has the mean over the steps of one answer; the answers take turns, and the best of three
// means counts. The second table runs no model: the drafts are made and accepted, and the steps
// cost what the first table says.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/drafted_answer.h"
#include "bench/model_flags.h"
#include "src/model/generate/draft_length.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

constexpr std::array<std::int64_t, 8> step_tokens = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr std::int64_t answer = 96;

struct Step {
  double seconds = 1e9;
  double tokens = 0;  // of a step; the last drafts of an answer are shorter
};
using Steps = std::array<Step, step_tokens.size()>;

/// Of a step of so many tokens, in steps of one: between the steps that were timed.
double cost(const Steps& steps, std::int64_t tokens) {
  const auto wanted = static_cast<double>(tokens);
  std::size_t i = 1;
  while (i + 1 < steps.size() && steps[i].tokens < wanted) ++i;
  const Step& before = steps[i - 1];
  const Step& behind = steps[i];
  const double part = (wanted - before.tokens) / (behind.tokens - before.tokens);
  return (before.seconds + part * (behind.seconds - before.seconds)) / steps[0].seconds;
}

/// Quotations begin at ten places of the text, each with the prompt that names its first tokens.
void print_quotations(const Steps& steps, const std::vector<topkv::Token>& text) {
  const auto cost_of = [&](std::int64_t tokens) { return cost(steps, tokens); };
  topkv::DraftLength known(true, false, 0);
  for (int i = 0; i < 50; ++i) {
    for (const std::int64_t tokens : {1, 8}) known.time(tokens, cost_of(tokens));
  }
  fmt::print("  {:>24} {:>14} {:>14}\n", "tokens of a quotation", "tokens a step",
             "times the rate");
  for (const std::size_t length : {64, 128, 256}) {
    if (text.size() < 2 * length) break;
    bench::DraftedAnswer all;
    for (std::size_t place = 0; place < 10; ++place) {
      const auto answer = std::span(text).subspan(place * (text.size() - length) / 10, length);
      const auto one = bench::draft_answer(text, answer.first(8), answer, cost_of, known.share());
      all.tokens += one.tokens;
      all.steps += one.steps;
      all.cost += one.cost;
    }
    fmt::print("  {:>24} {:>14.2f} {:>14.2f}\n", length, all.tokens_a_step(), all.gain());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::ModelFlags flags = bench::model_flags(argc, argv, {4096});
  const topkv::Device device = topkv::Device::open(flags.device, flags.gpu_memory);
  const topkv::Model model = topkv::Model::load(flags.directory, device, {}, flags.load);
  const topkv::RetrievalOptions options = {.index = flags.index, .capacity = 1024};
  const std::vector<topkv::Token> prompt(64, model.config().vocab_size / 2);
  for (const std::int64_t length : flags.lengths) {
    const auto text = bench::any_tokens(length, model.config().vocab_size);
    const auto context = model.prefill(text, flags.prefill)->ready_for(options, {}, device);
    Steps steps;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        topkv::Session session(context, options, device);
        topkv::DraftLength::forced = step_tokens[i] - 1;
        const auto got = model.generate(
            session, prompt,
            {.max_tokens = answer,
             .sampling = {.temperature = 0},
             .draft = step_tokens[i] == 1 ? topkv::Draft::none : topkv::Draft::lookup});
        const auto made = static_cast<double>(std::max<std::int64_t>(1, got.steps - got.accepted));
        steps[i].seconds = std::min(steps[i].seconds, got.decode_seconds / made);
        steps[i].tokens = 1 + static_cast<double>(got.drafted) / made;
      }
    }
    fmt::print("{} on {}, a text of {} tokens, index {}\n  {:>14} {:>14} {:>10} {:>24}\n",
               flags.directory, device.name(), length, flags.index, "tokens a step", "milliseconds",
               "of one", "share of a further token");
    for (const Step& step : steps) {
      const double of_one = step.seconds / steps[0].seconds;
      fmt::print("  {:>14.2f} {:>14.2f} {:>10.2f} {:>24.2f}\n", step.tokens, step.seconds * 1e3,
                 of_one, step.tokens > 1 ? (of_one - 1) / (step.tokens - 1) : 0.0);
    }
    print_quotations(steps, text);
    std::fflush(stdout);
  }
  return 0;
} catch (const topkv::Error& error) {
  fmt::print(stderr, "draft_steps_bench: {}\n", error.what());
  return 1;
}
