// What logits say of the token that came, and how two predictions differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace topkv {

/// log softmax of one token's logits, in float64.
std::vector<double> log_probabilities(std::span<const float> logits);

/// KL(from || to) of log probabilities, natural logarithm. Not a number if one of them is none.
template <class T>
double divergence(const std::vector<T>& from, const std::vector<T>& to) {
  double sum = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const double log_p = from[i];
    const double p = std::exp(log_p);
    if (p != 0) sum += p * (log_p - to[i]);
  }
  return std::isnan(sum) ? sum : std::max(0.0, sum);
}

/// The number of the most likely token.
template <class T>
std::ptrdiff_t most_likely(const std::vector<T>& log_p) {
  return std::max_element(log_p.begin(), log_p.end()) - log_p.begin();
}

/// How numbers are spread. Percentiles are interpolated between the two nearest numbers, as
/// llama-perplexity does.
struct Spread {
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double most = 0;
};
/// REQUIRES: a number.
Spread spread_of(std::vector<double> numbers);

/// How predictions of tokens differ from those with dense attention, token by token.
/// llama-perplexity --kl-divergence has the same statistics.
struct PredictionDifference {
  std::vector<double> kl = {};       ///< KL divergence from dense attention's, in nats
  std::vector<double> delta_p = {};  ///< the probability of the token that came, minus dense's
  std::int64_t same_top = 0;         ///< tokens whose most likely token is dense attention's

  /// Adds a token's log probabilities. next: the token that came, if it is known.
  void add(const std::vector<double>& dense, const std::vector<double>& found,
           std::optional<std::int64_t> next);

  /// The next three: 0 without a token.
  double agreement() const;  ///< the share of same_top
  double mean_delta_p() const;
  double rms_delta_p() const;
};

}  // namespace topkv
