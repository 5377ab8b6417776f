// RULER's niah_multivalue hides four values of a key at random depths, and asks for them in any
// order. Here are so many that a budget must hold them all at every step, in every part of the
// text.

#include <fmt/format.h>

#include <algorithm>

#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/prose_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/tasks.h"
#include "src/eval/tasks/wonderwords.h"

namespace topkv {
namespace {

constexpr std::int64_t needle_count = 32;
constexpr std::int64_t multineedle_spare_tokens =
    32;  ///< of an answer that writes more than its values

EvalSample multineedle_sample(const SampleOrder& order, const TaskTokens& tokens,
                              const ProseSource& essays) {
  Random random(order.seed);
  const std::string key = random_wonder_key(random);
  EvalSample sample;
  std::vector<std::string> needles;
  while (std::ssize(needles) < needle_count) {
    const std::string value = random_number(random);
    if (std::ranges::find(sample.references, value) != sample.references.end()) continue;
    sample.references.push_back(value);
    needles.push_back(ruler_needle("number", key, value));
  }
  sample.predict = tokens.count(fmt::format("{}", fmt::join(sample.references, ", "))) +
                   multineedle_spare_tokens;
  sample.question = fmt::format(
      "What are all the special magic numbers for {0} mentioned in the provided text, in the order "
      "in which they are mentioned? The special magic numbers for {0} mentioned in the provided "
      "text are, in this order,",
      key);
  fill_with_prose(&sample, order, tokens, essays, needles, [](const std::string& text) {
    return fmt::format("{}\n{}\n", ruler_intro("number", false), text);
  });
  return sample;
}

}  // namespace

EvalTask multineedle_task(const TaskTokens& tokens, const ProseSource& essays) {
  return prose_task("multineedle", Scoring::all, tokens, essays, multineedle_sample);
}

}  // namespace topkv
