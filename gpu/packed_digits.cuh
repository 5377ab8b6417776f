// Inputs of a product as digits, so that codes of 8 and 4 bits meet them in tensor cores as
// integers, without being unpacked: of every 128 inputs of a token, x = 2^e (65536 d2 + 256 d1 +
// d0), where a digit is a signed byte and 2^e is chosen by the largest of them. An input is a bf16,
// whose 8 significant bits are met exactly unless it is below 2^-15 of the largest; then it is off
// by at most 2^-23 of that one. Sums of digits times codes are exact in 32 bits.
//
// In shared memory a token has a plane for each digit, in the order in which the instruction takes
// inputs: the two words of a lane, of 32 inputs, lie beside each other. Only for .cu files.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu/kernel_parts.cuh"
#include "src/core/matrix.h"

namespace topkv::gpu {

inline constexpr int digits = 3;
inline constexpr int digit_inputs = 128;  // that share an exponent

/// Where digits of some tokens lie.
struct DigitPlanes {
  unsigned char* planes;  // [tokens, digits, plane bytes]
  float* powers;          // [tokens, blocks]: 2^e of each 128 inputs
  float* sums;            // [tokens, blocks * 128 / flush]: of so many inputs
  int blocks;
};

/// From one plane to the next: others than a multiple of 128, so that lanes read from different
/// banks.
__host__ __device__ constexpr int plane_bytes(int blocks) { return blocks * digit_inputs + 32; }

__host__ __device__ constexpr int digits_bytes(int blocks, int tokens, int flush) {
  return (tokens *
              (digits * plane_bytes(blocks) + blocks * 4 + blocks * (digit_inputs / flush) * 4) +
          127) /
         128 * 128;
}

__device__ __forceinline__ DigitPlanes digit_planes(unsigned char* memory, int blocks, int tokens) {
  DigitPlanes to{};
  to.planes = memory;
  to.blocks = blocks;
  to.powers = reinterpret_cast<float*>(memory + tokens * digits * plane_bytes(blocks));
  to.sums = to.powers + tokens * blocks;
  return to;
}

/// Digit d of four inputs, as a word. of: digit k of an input is byte k.
__device__ __forceinline__ void digit_words(const unsigned (&of)[4], unsigned (&words)[digits]) {
  const unsigned low01 = __byte_perm(of[0], of[1], 0x5140);
  const unsigned low23 = __byte_perm(of[2], of[3], 0x5140);
  const unsigned high01 = __byte_perm(of[0], of[1], 0x0062);
  const unsigned high23 = __byte_perm(of[2], of[3], 0x0062);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
}

/// 32 inputs of a token from `first` on in the order of the codes; 0 for those behind the last.
struct Inputs32 {
  uint4 eights[4];
};
template <class X>
__device__ __forceinline__ Inputs32 inputs32(const X& x, int first) {
  Inputs32 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.eights[i] = x.eight(first + 8 * i);
  return out;
}

/// Writes the digits of 32 inputs, where `wanted`; the 4 lanes from a multiple of 4 on have the 128
/// of a block. Every lane of a warp calls it.
template <Packing packing, int flush>
__device__ __forceinline__ void write_digits(const Inputs32& in, int token, int thirty_two,
                                             bool wanted, const DigitPlanes& to) {
  unsigned bits[32];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned pairs[4] = {in.eights[i].x, in.eights[i].y, in.eights[i].z, in.eights[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bits[8 * i + 2 * j] = pairs[j] << 16;
      bits[8 * i + 2 * j + 1] = pairs[j] & 0xffff0000U;
    }
  }
  unsigned largest = 0;
#pragma unroll
  for (unsigned b : bits) largest = max(largest, b & 0x7fffffffU);
  largest = max(largest, __shfl_xor_sync(all_lanes, largest, 1));
  largest = max(largest, __shfl_xor_sync(all_lanes, largest, 2));
  // Scaled by 2^power the largest is below 2^22. What is not finite makes all sums NaN.
  const int power = min(21 - (static_cast<int>(largest >> 23) - 127), 126);
  const float scale = __int_as_float((power + 127) << 23);
  const bool finite = largest < 0x7f800000U;
  const float unit = finite ? __int_as_float((127 - power) << 23) : __int_as_float(0x7fffffff);
  int sums[4] = {};  // of 8 inputs each
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    // Rounded to an integer by a number whose unit is 1; each digit's byte is 128 too large then.
    const unsigned rounded =
        __float_as_uint(fmaf(__uint_as_float(bits[i]), scale, 12582912.0F)) - 0x4b400000U;
    sums[i / 8] += static_cast<int>(rounded);
    bits[i] = (rounded + 0x808080U) ^ 0x808080U;
  }
  int sum = sums[0] + sums[1] + sums[2] + sums[3];
#pragma unroll
  for (int lanes = 1; lanes < flush / 32; lanes *= 2) sum += __shfl_xor_sync(all_lanes, sum, lanes);
  if (!wanted) return;
  unsigned words[digits][8];
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    // int8: inputs 4 (w / 2) and on of each 16; int4: as the nibbles of word w / 2 lie (matrix.h).
    const int first = packing == Packing::int4 ? w / 2 * 8 + w % 2 * 2 : w % 2 * 16 + w / 2 * 4;
    const unsigned four[4] = {bits[first],
                              packing == Packing::int4 ? bits[first + 4] : bits[first + 1],
                              packing == Packing::int4 ? bits[first + 1] : bits[first + 2],
                              packing == Packing::int4 ? bits[first + 5] : bits[first + 3]};
    unsigned out[digits];
    digit_words(four, out);
#pragma unroll
    for (int d = 0; d < digits; ++d) words[d][w] = out[d];
  }
#pragma unroll
  for (int d = 0; d < digits; ++d) {
    auto* plane = reinterpret_cast<uint4*>(
        to.planes + (token * digits + d) * plane_bytes(to.blocks) + thirty_two * 32);
    plane[0] = {words[d][0], words[d][1], words[d][2], words[d][3]};
    plane[1] = {words[d][4], words[d][5], words[d][6], words[d][7]};
  }
  const int part = thirty_two % 4;
  if (part == 0) to.powers[token * to.blocks + thirty_two / 4] = unit;
  float* const flushed = to.sums + token * to.blocks * (digit_inputs / flush);
  if constexpr (flush == 16) {
    flushed[2 * thirty_two] = static_cast<float>(sums[0] + sums[1]) * unit;
    flushed[2 * thirty_two + 1] = static_cast<float>(sums[2] + sums[3]) * unit;
  } else if (part % (flush / 32) == 0) {
    flushed[thirty_two / (flush / 32)] = static_cast<float>(sum) * unit;
  }
}

}  // namespace topkv::gpu
