// What a tail says of its own error. Kernels read it too.
#pragma once

namespace topkv {

/// Of a score's error: what is larger is taken for this, so that exp of it is finite.
inline constexpr float largest_tail_variance = 60;

/// What is known of an estimate's error, for one query. Its weights p, of sum 1, are off by factors
/// exp(e), and values by their own errors, all independent: what is off in the end is a sum of
/// small parts. Repeated rows are off alike, which this does not see.
struct TailNoise {
  float weights = 0;  ///< (exp(s²) - 1) Σ p², where s² is the variance of e
  float values = 0;   ///< Σ p² times the variance of a value's error
  float spread = 0;   ///< of what values' codes stand for, about its mean: the variance
};

}  // namespace topkv
