// Scores relative to a reference, in units of log2 and with the bias of weights (code_stages.h),
// for a pass over codes.
#pragma once

#include <cmath>

#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"

namespace topkv::gpu {

/// The initial sums contain the reference, so that it costs nothing.
template <int K, bool capped>
class RelativeScores {
 public:
  /// plan: the plan of head lane / 4.
  __device__ __forceinline__ RelativeScores(const CodeScan& /*scan*/, const QueryPlan& plan,
                                            const std::uint8_t* coefficients, int lane) {
    keys_.load(coefficients, lane);
    keys_.lo = plan.lo;
    keys_.add = plan.add;
    keys_.high = magic_bits + plan.high;
    keys_.low = magic_bits + plan.low;
  }

  /// The scores of two keys, as KeyScores::of has them.
  template <class Word>
  __device__ __forceinline__ float2 of(const Word& word) const {
    return keys_.of(word);
  }

  /// Moves the reference up where `most`, a score of this lane's head, is above 11, which becomes 6
  /// at most. By so much.
  __device__ __forceinline__ float raise_for(float most) {
    return raise(most > 11 ? static_cast<int>(ceilf((most - 6) / (256 * keys_.lo))) : 0);
  }
  /// Moves the reference up by at least so much. By so much.
  __device__ __forceinline__ float raise_by(float least) {
    return raise(least > 0 ? static_cast<int>(ceilf(least / (256 * keys_.lo))) : 0);
  }

 private:
  __device__ __forceinline__ float raise(int steps) {
    keys_.high -= steps;
    return static_cast<float>(steps) * (256 * keys_.lo);
  }

  KeyScores<K> keys_;
};

/// A cap bounds the full scores. The reference is subtracted after the cap.
template <int K>
class RelativeScores<K, true> {
 public:
  __device__ __forceinline__ RelativeScores(const CodeScan& scan, const QueryPlan& plan,
                                            const std::uint8_t* coefficients, int lane)
      : keys_(scan, plan, coefficients, lane),
        cap_(scan.softcap * log2_of_e),
        less_(plan.reference - scan_bias_log2) {}

  template <class Word>
  __device__ __forceinline__ float2 of(const Word& word) const {
    const float2 score = keys_.of(word);
    return {cap_.of(score.x, less_), cap_.of(score.y, less_)};
  }

  __device__ __forceinline__ float raise_for(float most) {
    const float by = most > 11 ? most - 6 : 0.0F;
    less_ += by;
    return by;
  }
  __device__ __forceinline__ float raise_by(float least) {
    less_ += least;
    return least;
  }

 private:
  RelativeScores<K, false> keys_;  // from 0: plan_kernel
  SoftCap cap_;
  float less_;
};

}  // namespace topkv::gpu
