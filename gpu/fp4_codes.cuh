// Codes of Packing::fp4 in registers, as packed_codes.cuh has the others. Only for .cu files.
#pragma once

#include "gpu/packed_codes.cuh"

namespace topkv::gpu {

/// A word has 8 inputs, pair i of them 4 i bits up in each half: sign, 2 bits of exponent and 1 of
/// mantissa. Moved to where a bf16 has those, they are 2^-127 times the code (which is twice e2m1);
/// where the exponent is 0 as well, for subnormal factors of this product keep their value.
template <>
struct Codes<Packing::fp4> {
  static constexpr int per_word = 8;
  static constexpr int pairs = 4;
  template <int i>
  static __device__ __forceinline__ unsigned pair(unsigned word) {
    const unsigned at = word >> (4 * i);
    const unsigned bits = masked(at << 6, 0x01c001c0U, (at << 12) & 0x80008000U);
    unsigned out;  // bits * 2^127 + (-0)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(out)
        : "r"(bits), "r"(0x7f007f00U), "r"(0x80008000U));
    return out;
  }
};

}  // namespace topkv::gpu
