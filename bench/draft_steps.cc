// Milliseconds of a decode step by the number of its tokens: what drafts cost.
//
//   draft_steps_bench [the flags of rates_bench] [model directory [tokens…]]
//
// The session's text ends with a row of tokens that repeats, so that each step has a draft. Whether
// the model accepts it does not matter here. A row has the mean over the steps of one answer; the
// answers take turns, and the best of three means counts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/model_flags.h"
#include "src/model/generate/draft_length.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

constexpr std::array<std::int64_t, 8> step_tokens = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr std::int64_t answer = 160;

struct Step {
  double seconds = 1e9;
  double tokens = 0;  // of a step; the last drafts of an answer are shorter
};

}  // namespace

int main(int argc, char** argv) try {
  const bench::ModelFlags flags = bench::model_flags(argc, argv, {4096});
  const topkv::Device device = topkv::Device::open(flags.device, flags.gpu_memory);
  const topkv::Model model = topkv::Model::load(flags.directory, device, {}, flags.load);
  const topkv::RetrievalOptions options = {.index = flags.index, .capacity = 1024};
  std::vector<topkv::Token> prompt;
  const auto row = bench::any_tokens(12, model.config().vocab_size);
  for (int i = 0; i < 6; ++i) prompt.insert(prompt.end(), row.begin(), row.end());
  for (const std::int64_t length : flags.lengths) {
    const auto context =
        model.prefill(bench::any_tokens(length, model.config().vocab_size), flags.prefill)
            ->ready_for(options, {}, device);
    std::array<Step, step_tokens.size()> steps;
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
    std::fflush(stdout);
  }
  return 0;
} catch (const topkv::Error& error) {
  fmt::print(stderr, "draft_steps_bench: {}\n", error.what());
  return 1;
}
