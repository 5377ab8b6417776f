// Weighted sums of stored vectors: what attention does with values.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// Some of the stored vectors, and what each weighs in each sum.
struct WeightedVectors {
  const KeyView& stored;          ///< without a bias: values, or what is stored like them
  const std::int64_t* positions;  ///< [count]
  std::int64_t count;
  const float* weights;  ///< [sums], weights_stride apart, of [count]
  std::int64_t weights_stride;
  std::int64_t sums;
};

/// out[s, i] += Σ_r weights[s, r] * element i of vector positions[r], in the order of r, in
/// float32. out: [sums, stored.dim]. SIMD, chosen at run time.
void add_weighted(const WeightedVectors& vectors, float* out);

}  // namespace topkv
