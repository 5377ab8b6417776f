// What logits say of the token that came, and how two predictions differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace topkv {

/// log softmax of one token's logits, in float64.
std::vector<double> log_probabilities(std::span<const float> logits);

/// KL(from || to) of log probabilities, natural logarithm.
template <class T>
double divergence(const std::vector<T>& from, const std::vector<T>& to) {
  double sum = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const double log_p = from[i];
    sum += std::exp(log_p) * (log_p - to[i]);
  }
  return std::max(0.0, sum);
}

/// The number of the most likely token.
template <class T>
std::ptrdiff_t most_likely(const std::vector<T>& log_p) {
  return std::max_element(log_p.begin(), log_p.end()) - log_p.begin();
}

}  // namespace topkv
