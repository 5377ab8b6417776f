// Biases of keys as RoPE turns them, by plain arithmetic in float64, for halves of heads
// (ContextOptions::key_bias).
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace topkv {

/// A pair (i, i + dim / 2) of a head, and the bias of both.
struct BiasedPair {
  std::int64_t pair;
  float first, second;
};

/// [3, dim] for one head, which others may follow.
inline std::vector<float> one_key_bias(std::int64_t dim, double theta,
                                       const std::vector<BiasedPair>& pairs) {
  std::vector<float> out(static_cast<std::size_t>(3 * dim));
  for (std::int64_t i = 0; i < dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
    const auto frequency = static_cast<float>(std::pow(theta, exponent));
    out[static_cast<std::size_t>(2 * dim + i)] = frequency;
    out[static_cast<std::size_t>(2 * dim + dim / 2 + i)] = frequency;
  }
  for (const auto& [pair, first, second] : pairs) {
    const auto a = static_cast<std::size_t>(pair);
    const std::size_t b = a + static_cast<std::size_t>(dim / 2);
    out[a] = first;
    out[b] = second;
    out[static_cast<std::size_t>(dim) + a] = -second;
    out[static_cast<std::size_t>(dim) + b] = first;
  }
  return out;
}

/// The same for `heads` heads, one behind the other.
inline std::vector<float> key_biases(std::int64_t heads, std::int64_t dim, double theta,
                                     const std::vector<BiasedPair>& pairs) {
  const std::vector<float> one = one_key_bias(dim, theta, pairs);
  std::vector<float> all;
  for (std::int64_t h = 0; h < heads; ++h) all.insert(all.end(), one.begin(), one.end());
  return all;
}

/// Element i of the bias [3, dim] at a position. The angle is rounded as networks round it.
inline double rope_turned(const float* bias, std::int64_t dim, std::int64_t i,
                          std::int64_t position) {
  const float angle = static_cast<float>(position) * bias[2 * dim + i];
  return bias[i] * std::cos(double{angle}) + bias[dim + i] * std::sin(double{angle});
}

}  // namespace topkv
