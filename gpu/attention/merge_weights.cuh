// The merge of two partials of a head (include/topkv/attention.h) on the device.
#pragma once

namespace topkv::gpu {

/// The factors of the old and of the new partial, and the lse of their merge.
struct Weights {
  float before, now, lse;
};

__device__ __forceinline__ Weights merge_weights(float before, float now) {
  const float high = fmaxf(before, now);
  if (high == -INFINITY) return {1.0F, 0.0F, high};
  const float a = expf(before - high);
  const float b = expf(now - high);
  return {a / (a + b), b / (a + b), high + logf(a + b)};
}

}  // namespace topkv::gpu
