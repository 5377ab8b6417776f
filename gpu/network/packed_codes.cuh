// Codes of packed weights (src/core/math/matrix.h) in registers: words of codes to pairs of bf16,
// which hold them exactly. Only for .cu files.
//
// A bf16 of 128 to 255 has steps of 1: a code in the low bits of 0x4300 is 128 + code.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "src/core/math/matrix.h"

namespace topkv::gpu {

/// (a & b) | c
__device__ __forceinline__ unsigned masked(unsigned a, unsigned b, unsigned c) {
  unsigned out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

/// a - b, pair by pair.
__device__ __forceinline__ unsigned subtracted(unsigned a, unsigned b) {
  unsigned out;  // 1 * a + (-b), exact here: sm_80 has no subtraction of pairs
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(0x3f803f80U), "r"(b ^ 0x80008000U));
  return out;
}

template <Packing packing>
struct Codes;

/// A word has 8 inputs, pair i of them 4 i bits up in each half.
template <>
struct Codes<Packing::int4> {
  static constexpr int per_word = 8;
  static constexpr int pairs = 4;
  template <int i>
  static __device__ __forceinline__ unsigned pair(unsigned word) {
    return subtracted(masked(word >> (4 * i), 0x000f000fU, 0x43004300U), 0x43084308U);
  }
};

/// A word has 4 inputs, a byte each. 128 + the low seven bits, less 128 + the eighth's 128.
template <>
struct Codes<Packing::int8> {
  static constexpr int per_word = 4;
  static constexpr int pairs = 2;
  template <int i>
  static __device__ __forceinline__ unsigned pair(unsigned word) {
    const unsigned bytes = __byte_perm(word, 0, i == 0 ? 0x4140 : 0x4342);
    return subtracted(masked(bytes, 0x007f007fU, 0x43004300U),
                      masked(bytes, 0x00800080U, 0x43004300U));
  }
};

/// A word has 4 inputs, a byte each: sign, 4 bits of exponent and 3 of mantissa. Moved to where a
/// bf16 has those, they are 2^-112 times the code; where the exponent is 0 as well, for subnormal
/// factors of this product keep their value.
template <>
struct Codes<Packing::fp8> {
  static constexpr int per_word = 4;
  static constexpr int pairs = 2;
  template <int i>
  static __device__ __forceinline__ unsigned pair(unsigned word) {
    const unsigned high = __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
    const unsigned bits = masked(high >> 4, 0x07f007f0U, high & 0x80008000U);
    unsigned out;  // bits * 2^112 + (-0)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(out)
        : "r"(bits), "r"(0x77807780U), "r"(0x80008000U));
    return out;
  }
};

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
