#include "src/model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "topkv/error.h"

namespace topkv {

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    throw InvalidArgument(
        fmt::format("temperature is {}; expected 0 (greedy) or more", options.temperature));
  }
  if (options.top_k < 0) {
    throw InvalidArgument(fmt::format("top-k is {}; expected 0 (off) or more", options.top_k));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw InvalidArgument(
        fmt::format("top-p is {}; expected above 0 and at most 1 (off)", options.top_p));
  }
}

Token Sampler::sample(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return static_cast<Token>(best - logits.begin());

  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back(
        {std::exp((double{logits[i]} - *best) / options_.temperature), static_cast<Token>(i)});
  }
  const auto heavier = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  std::sort(candidates_.begin(), candidates_.end(), heavier);
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // Nucleus: the fewest candidates that hold top_p of the weight.
  double held = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || held < options_.top_p * total))
    held += candidates_[kept++].weight;

  // The generator's own bits, not a standard distribution: those differ between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * held;
  for (std::size_t i = 0; i < kept; ++i) {
    left -= candidates_[i].weight;
    if (left < 0) return candidates_[i].token;
  }
  return candidates_[kept - 1].token;
}

}  // namespace topkv
