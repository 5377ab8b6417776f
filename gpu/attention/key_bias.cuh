// The bias of keys, rotated by RoPE (src/core/math/key_bias.h). The bits equal the host's: every
// operation is IEEE's, in the host's order, and none is fused.
#pragma once

#include <cstdint>

#include "gpu/attention/row_blocks.h"

namespace topkv::gpu {

/// The bias that was subtracted from element i of a key of KV head h before rounding. t: the number
/// of the key, from the first key of `of` on. 0 if keys have no bias.
__device__ inline float turned_bias(const StoredKeys& of, std::int64_t head_dim, std::int64_t h,
                                    std::int64_t t, std::int64_t i) {
  if (of.bias == nullptr) return 0;
  std::int64_t position = of.first_position + t;
  if (of.chunk_len > 0) position %= of.chunk_len;
  const float* bias = of.bias + h * 3 * head_dim;
  const float angle = __fmul_rn(__ll2float_rn(position), bias[2 * head_dim + i]);
  double turns = __dmul_rn(static_cast<double>(angle), 0.15915494309189535);
  turns = __dsub_rn(turns, rint(turns));
  const float turn = __double2float_rn(turns);
  const float quarter = rintf(__fmul_rn(turn, 4.0F));
  const float x = __fmul_rn(__fsub_rn(turn, __fmul_rn(quarter, 0.25F)), 6.2831855F);
  const float z = __fmul_rn(x, x);
  const auto polynomial = [z](float a, float b, float c) {
    return __fmul_rn(__fadd_rn(__fmul_rn(__fadd_rn(__fmul_rn(a, z), b), z), c), z);
  };
  const float s = __fadd_rn(
      __fmul_rn(polynomial(-1.9515295891e-4F, 8.3321608736e-3F, -1.6666654611e-1F), x), x);
  const float even = __fmul_rn(
      polynomial(2.443315711809948e-5F, -1.388731625493765e-3F, 4.166664568298827e-2F), z);
  const float c = __fadd_rn(__fsub_rn(even, __fmul_rn(z, 0.5F)), 1.0F);
  const int k = static_cast<int>(quarter) & 3;
  const float cosine = k == 0 ? c : k == 1 ? -s : k == 2 ? -c : s;
  const float sine = k == 0 ? s : k == 1 ? c : k == 2 ? -s : -c;
  return __fadd_rn(__fmul_rn(bias[i], cosine), __fmul_rn(bias[head_dim + i], sine));
}

}  // namespace topkv::gpu
