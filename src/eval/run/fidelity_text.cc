#include "src/eval/run/fidelity_text.h"

#include <string_view>
#include <utility>

#include "src/eval/tasks/haystack.h"
#include "src/eval/tasks/needle_context.h"
#include "src/eval/tasks/needle_task.h"

namespace topkv {

FidelityText make_fidelity_text(const Tokenizer& tokenizer, const std::vector<Token>& beginning,
                                std::int64_t length, const std::vector<double>& depths,
                                const std::string& haystack, std::uint64_t seed) {
  const NeedleTask task(NeedleStyle::number, {});
  const std::vector<Needle> needles = task.needles(depths, seed);
  Random distractors(mix_seed(seed, 1));
  const auto sentences = make_haystack(haystack, mix_seed(seed, 2),
                                       [&] { return task.distractor(distractors, needles); });
  NeedleContext made =
      build_needle_context(length, beginning, task.intro(), needles, *sentences,
                           [&](std::string_view piece) { return tokenizer.encode(piece); });
  FidelityText text{std::move(made.tokens), {}};
  for (const PlacedNeedle& placed : made.needles) {
    text.probes.push_back(
        tokenizer.encode(placed.needle.question + " " + placed.needle.value + ".\n"));
  }
  return text;
}

}  // namespace topkv
