// What a tail gives: an estimate, and what it says of its own error. Kernels read it too.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// Of a score's error: what is larger is taken for this, so that exp of it is finite.
inline constexpr float largest_tail_variance = 60;

/// The largest squared shared error (SharedError): sums of such squares, times shares, stay finite.
inline constexpr float largest_shared_square = 1e30F;

/// Returns a squared shared error. form: its quadratic form, which noise may make negative, and
/// which may be beyond float32 or NaN.
constexpr float shared_square(double form) {
  if (form <= 0) return 0;
  return form < largest_shared_square ? static_cast<float>(form) : largest_shared_square;
}

/// What is known of an estimate's error, for one query. Its weights p, of sum 1, are off by factors
/// exp(e), and values by their own errors, all independent: what is off in the end is a sum of
/// small parts. Tails of codes add the error that their rows share (SharedError) to `values`.
struct TailNoise {
  float weights = 0;  ///< (exp(s²) - 1) Σ p², where s² is the variance of e
  float values = 0;   ///< Σ p² times the variance of a value's error, and the shared error
  float spread = 0;   ///< of what values' codes stand for, about its mean: the variance
};

/// Of two estimates as one: the first has this share of their mass; apart: |difference|² of what
/// they give.
constexpr TailNoise joined(float share, const TailNoise& first, const TailNoise& second,
                           float apart) {
  const float rest = 1 - share;
  const float of_first = share * share * first.weights;
  const float of_second = rest * rest * second.weights;
  const float weights = of_first + of_second;
  // Each is about its own mean, which lies away from that of both.
  const float spread = of_first * (first.spread + rest * rest * apart) +
                       of_second * (second.spread + share * share * apart);
  return {weights, share * share * first.values + rest * rest * second.values,
          weights > 0 ? spread / weights : 0.0F};
}

/// The estimate of a tail, for each query, beside rows that are attended as they are. A null `out`
/// or no heads: there is no such partial.
struct TailParts {
  PartialView estimate = {};   ///< of the rows that are known by a few bytes
  PartialView exact = {};      ///< of rows that are attended as they are
  TailNoise* noise = nullptr;  ///< of the estimate, for each of its heads

  /// Returns the parts of `count` queries, from number `first` on. REQUIRES: there is an estimate.
  TailParts part(std::int64_t first, std::int64_t count) const {
    return {estimate.part(first, count), exact.part(first, count), noise + first};
  }
};

}  // namespace topkv
