// Inputs of a product in shared memory, in the form in which codes of 8 and 4 bits meet them in
// tensor cores. Of every 128 inputs of a token x = 2^e y, where 2^e is chosen by the largest of
// them, and y are
//
//   digits  for codes that are integers (int8, int4), which so need no unpacking: y = 65536 d2 +
//           256 d1 + d0, where a digit is a signed byte. Sums of digits times codes are exact in
//           32 bits.
//   halves  for codes that are floats (fp8, fp4), which become float16 by masks and shifts: y is a
//           float16 as well. Their products are exact, and summed in float32.
//
// An input is a bf16, whose 8 significant bits are met exactly unless it is below 2^-14 (halves:
// 2^-32) of the largest; then it is off by at most 2^-22 (2^-40) of that one.
//
// A token has a plane for each digit, or one of halves, in the order in which the instruction takes
// inputs: what a lane takes of 32 inputs lies together. Only for .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/runtime/kernel_parts.cuh"
#include "src/core/math/matrix.h"

namespace topkv::gpu {

inline constexpr int power_inputs = 128;  // that share an exponent
inline constexpr int digits = 3;

__host__ __device__ constexpr bool met_as_halves(Packing packing) {
  return packing == Packing::fp8 || packing == Packing::fp4;
}

/// Where inputs of some tokens lie. flush: inputs between two times that sums are scaled.
template <Packing packing, int flush>
struct InputPlanes {
  static constexpr bool halves = met_as_halves(packing);
  static constexpr int planes_of_token = halves ? 1 : digits;
  static constexpr int input_bytes = halves ? 2 : 1;
  static constexpr int sums_of_block = halves ? 0 : power_inputs / flush;

  unsigned char* planes;  // [tokens, planes of a token, plane bytes]
  float* powers;          // [tokens, blocks]: 2^e of each 128 inputs
  float* sums;            // [tokens, blocks * sums of a block]: of `flush` inputs each
  int blocks;             // of 128 inputs

  /// From one plane to the next: no multiple of 128, so that lanes read from different banks.
  static __host__ __device__ constexpr int plane_bytes(int blocks) {
    return blocks * power_inputs * input_bytes + (halves ? 64 : 32);
  }
  static __host__ __device__ constexpr int bytes(int blocks, int tokens) {
    return (tokens *
                (planes_of_token * plane_bytes(blocks) + blocks * 4 + blocks * sums_of_block * 4) +
            127) /
           128 * 128;
  }
  static __device__ __forceinline__ InputPlanes in(unsigned char* memory, int blocks, int tokens) {
    InputPlanes to{};
    to.planes = memory;
    to.blocks = blocks;
    to.powers = reinterpret_cast<float*>(memory + tokens * planes_of_token * plane_bytes(blocks));
    to.sums = to.powers + tokens * blocks;
    return to;
  }
};

/// 32 inputs of a token from `first` on in the order of the codes; 0 for those behind the last.
struct Inputs32 {
  uint4 eights[4];

  template <class X>
  static __device__ __forceinline__ Inputs32 of(const X& x, int first) {
    Inputs32 out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.eights[i] = x.eight(first + 8 * i);
    return out;
  }
  /// As the bits of floats.
  __device__ __forceinline__ void widen(unsigned (&bits)[32]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned pairs[4] = {eights[i].x, eights[i].y, eights[i].z, eights[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        bits[8 * i + 2 * j] = pairs[j] << 16;
        bits[8 * i + 2 * j + 1] = pairs[j] & 0xffff0000U;
      }
    }
  }
};

/// What 128 inputs share: y = x * scale, and x = y * unit.
struct Power {
  float scale;
  float unit;  // NaN, which makes all sums so, where an input is not finite

  /// largest_y: log2 of what the largest input is scaled to, and below its double. unit_power:
  /// log2 of what unit is larger by. The 4 lanes from a multiple of 4 on have the 128.
  template <int largest_y, int unit_power>
  static __device__ __forceinline__ Power of(const unsigned (&bits)[32]) {
    unsigned largest = 0;
#pragma unroll
    for (unsigned b : bits) largest = max(largest, b & 0x7fffffffU);
    largest = max(largest, __shfl_xor_sync(all_lanes, largest, 1));
    largest = max(largest, __shfl_xor_sync(all_lanes, largest, 2));
    const int power = min(largest_y - (static_cast<int>(largest >> 23) - 127), 126);
    const bool finite = largest < 0x7f800000U;
    return {__int_as_float((power + 127) << 23),
            __int_as_float(finite ? (127 - power + unit_power) << 23 : 0x7fffffff)};
  }
};

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

template <Packing packing, int flush>
__device__ __forceinline__ void write_digits(const Inputs32& in, int token, int thirty_two,
                                             bool wanted, const InputPlanes<packing, flush>& to) {
  using Planes = InputPlanes<packing, flush>;
  unsigned bits[32];
  in.widen(bits);
  const auto [scale, unit] = Power::of<21, 0>(bits);
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
        to.planes + (token * digits + d) * Planes::plane_bytes(to.blocks) + thirty_two * 32);
    plane[0] = {words[d][0], words[d][1], words[d][2], words[d][3]};
    plane[1] = {words[d][4], words[d][5], words[d][6], words[d][7]};
  }
  const int part = thirty_two % 4;
  if (part == 0) to.powers[token * to.blocks + thirty_two / 4] = unit;
  float* const flushed = to.sums + token * to.blocks * Planes::sums_of_block;
  if constexpr (flush == 16) {
    flushed[2 * thirty_two] = static_cast<float>(sums[0] + sums[1]) * unit;
    flushed[2 * thirty_two + 1] = static_cast<float>(sums[2] + sums[3]) * unit;
  } else if (part % (flush / 32) == 0) {
    flushed[thirty_two / (flush / 32)] = static_cast<float>(sum) * unit;
  }
}

template <Packing packing, int flush>
__device__ __forceinline__ void write_halves(const Inputs32& in, int token, int thirty_two,
                                             bool wanted, const InputPlanes<packing, flush>& to) {
  using Planes = InputPlanes<packing, flush>;
  unsigned bits[32];
  in.widen(bits);
  // The largest of 65280 that a bf16 can be here is a float16. Codes of 4 bits become float16 that
  // are 2^-15 of them.
  const Power power = Power::of < 15, packing == Packing::fp4 ? 15 : 0 > (bits);
  if (!wanted) return;
  const auto pair = [&](int first, int second) {
    const __half2 halves = __floats2half2_rn(__uint_as_float(bits[first]) * power.scale,
                                             __uint_as_float(bits[second]) * power.scale);
    return *reinterpret_cast<const unsigned*>(&halves);
  };
  auto* const plane = reinterpret_cast<uint4*>(to.planes + token * Planes::plane_bytes(to.blocks) +
                                               thirty_two * 64);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    if constexpr (packing == Packing::fp4) {
      plane[q] = {pair(8 * q, 8 * q + 1), pair(8 * q + 2, 8 * q + 3), pair(8 * q + 4, 8 * q + 5),
                  pair(8 * q + 6, 8 * q + 7)};
    } else {  // bytes 0 and 2 of a word, and 1 and 3, are widened together
      const int f = 4 * q;
      plane[q] = {pair(f, f + 2), pair(f + 1, f + 3), pair(f + 16, f + 18), pair(f + 17, f + 19)};
    }
  }
  if (thirty_two % 4 == 0) to.powers[token * to.blocks + thirty_two / 4] = power.unit;
}

/// Writes 32 inputs, where `wanted`; the 4 lanes from a multiple of 4 on have the 128 of a block.
/// Every lane of a warp calls it.
template <Packing packing, int flush>
__device__ __forceinline__ void write_inputs(const Inputs32& in, int token, int thirty_two,
                                             bool wanted, const InputPlanes<packing, flush>& to) {
  if constexpr (met_as_halves(packing)) {
    write_halves(in, token, thirty_two, wanted, to);
  } else {
    write_digits(in, token, thirty_two, wanted, to);
  }
}

}  // namespace topkv::gpu
