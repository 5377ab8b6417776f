#include "src/model/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "topkv/error.h"

namespace topkv {
namespace {

/// The nearest finite number: differences of infinities are no numbers, and have no order.
float as_float(double x) {
  constexpr double largest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp<double>(x, -largest, largest));
}

}  // namespace

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
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    throw InvalidArgument(
        fmt::format("min-p is {}; expected 0 (off) or more, and at most 1", options.min_p));
  }
  if (!(options.repetition_penalty > 0) || !std::isfinite(options.repetition_penalty)) {
    throw InvalidArgument(fmt::format("repetition penalty is {}; expected above 0, 1 for none",
                                      options.repetition_penalty));
  }
  for (const double penalty : {options.frequency_penalty, options.presence_penalty}) {
    if (std::isfinite(penalty)) continue;
    throw InvalidArgument(fmt::format(
        "frequency and presence penalty are {} and {}; expected finite numbers, 0 for none",
        options.frequency_penalty, options.presence_penalty));
  }
  for (const TokenBias& one : options.logit_bias) {
    if (std::isfinite(one.bias)) continue;
    throw InvalidArgument(fmt::format("the logit bias of token {} is {}; expected a finite number",
                                      one.token, one.bias));
  }
}

void Sampler::read(std::span<const Token> prompt, std::int64_t vocabulary) {
  if (!penalises()) return;
  answered_.resize(static_cast<std::size_t>(vocabulary), -1);
  for (const Token token : prompt) see(token);
}

void Sampler::see(Token token) {
  std::int32_t& count = answered_[static_cast<std::size_t>(token)];
  if (count >= 0) return;
  seen_.push_back(token);
  count = 0;
}

void Sampler::answer(Token token) {
  if (!penalises()) return;
  see(token);
  ++answered_[static_cast<std::size_t>(token)];
}

std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (seen_.empty() && options_.logit_bias.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const TokenBias& one : options_.logit_bias) {
    float& logit = adjusted_[static_cast<std::size_t>(one.token)];
    logit = as_float(double{logit} + one.bias);
  }
  for (const Token token : seen_) {
    const auto at = static_cast<std::size_t>(token);
    const double logit = adjusted_[at];
    const double repeated =
        logit < 0 ? logit * options_.repetition_penalty : logit / options_.repetition_penalty;
    const std::int32_t count = answered_[at];
    const double result =
        repeated - count * options_.frequency_penalty - (count > 0 ? options_.presence_penalty : 0);
    adjusted_[at] = as_float(result);
  }
  return adjusted_;
}

std::span<const Sampler::Candidate> Sampler::candidates(std::span<const float> given,
                                                        std::span<const std::int32_t> allowed) {
  const std::span<const float> logits = adjusted(given);
  const auto may_be = [&](std::size_t token) {
    return allowed.empty() ||
           (static_cast<std::uint32_t>(allowed[token / 32]) >> (token % 32) & 1) != 0;
  };
  std::size_t best = logits.size();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (may_be(i) && (best == logits.size() || logits[i] > logits[best])) best = i;
  candidates_.clear();
  if (options_.temperature == 0) {
    candidates_.push_back({1, static_cast<Token>(best)});
    return candidates_;
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!may_be(i)) continue;
    candidates_.push_back({std::exp((double{logits[i]} - logits[best]) / options_.temperature),
                           static_cast<Token>(i)});
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
  // The likeliest weighs 1, so that shares of its probability are weights.
  while (candidates_[kept - 1].weight < options_.min_p) --kept;
  candidates_.resize(kept);
  return candidates_;
}

Token Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> allowed) {
  const std::span<const Candidate> from = candidates(logits, allowed);
  if (options_.temperature == 0) return from[0].token;
  double held = 0;
  for (const Candidate& candidate : from) held += candidate.weight;
  // The generator's own bits, not a standard distribution: those differ between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * held;
  for (const Candidate& candidate : from) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return from.back().token;
}

}  // namespace topkv
