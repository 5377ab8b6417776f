// What a warp multiplies of a product of packed weights with few inputs (packed_vector.cu): the
// codes of a stage with 128 inputs that share a power of two. Only for .cu files.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/network/packed_inputs.cuh"
#include "gpu/network/packed_stages.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {

/// c[16, 8] += a[16, 32] b[32, 8], integers.
template <bool of_signed>
__device__ __forceinline__ void multiply32(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (of_signed) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
/// c[16, 8] += a[16, 16] b[16, 8].
__device__ __forceinline__ void multiply16(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
/// The same, float16.
__device__ __forceinline__ void multiply16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// (a & b) | (c & d)
__device__ __forceinline__ unsigned joined(unsigned a, unsigned b, unsigned c, unsigned d) {
  return (a & b) | (c & d);
}
/// Four fp8 codes as pairs of float16: bytes 0 and 2, 1 and 3.
__device__ __forceinline__ void widen8(unsigned word, unsigned& even, unsigned& odd) {
  even = joined(word << 7, 0x3f803f80U, word << 8, 0x80008000U);
  odd = joined(word >> 1, 0x3f803f80U, word, 0x80008000U);
}
/// Eight fp4 codes as pairs of float16 that are 2^-15 of them: neighbours.
__device__ __forceinline__ void widen4(unsigned word, unsigned (&pairs)[4]) {
  pairs[0] = joined(word << 9, 0x0e000e00U, word << 12, 0x80008000U);
  pairs[1] = joined(word << 5, 0x0e000e00U, word << 8, 0x80008000U);
  pairs[2] = joined(word << 1, 0x0e000e00U, word << 4, 0x80008000U);
  pairs[3] = joined(word >> 3, 0x0e000e00U, word, 0x80008000U);
}

template <Packing packing, bool offsets>
inline constexpr bool with_input_sums = offsets || packing == Packing::int4;

/// The products of a stage's codes with 128 inputs each time, whose power is the caller's to apply.
template <Packing packing, int flush, bool row, bool offsets>
struct PowerBlock {
  using F = StageFormat<packing, flush, row, offsets>;
  static constexpr bool halves = met_as_halves(packing);
  static constexpr int block_pieces = pieces / F::blocks;
  using Sum = std::conditional_t<halves, float, int>;

  std::uint32_t rows;    // codes of the stage, in shared memory
  const float* factors;  // [tile, F::factors], and offsets
  int lane;
  Sum c[4];

  /// scaled += the sum of block i, without its power; totals += that of the offsets. plane: the
  /// lane's inputs, read where `there`; sums: of the block's flushes, which count so often.
  __device__ __forceinline__ void multiply(int i, const unsigned char* plane, bool there,
                                           const float* sums, float counts, float (&scaled)[2],
                                           float (&totals)[2]) {
#pragma unroll
    for (int p = 0; p < block_pieces; p += 2) {
      // Two pieces of 8 rows and of the 8 below them.
      std::uint32_t a[4];
      load_matrices(a, rows + place_of(lane % 16, i * block_pieces + p + lane / 16));
      const auto flushed = [&](int inputs) {  // of the block, up to here
        if (inputs % flush == 0)
          scale(i * (power_inputs / flush), inputs / flush - 1, sums, counts, scaled, totals);
      };
      if constexpr (packing == Packing::int8) {
        const auto b = there ? *reinterpret_cast<const uint2*>(plane + p * 16) : uint2{};
        if constexpr (flush == 16) {
          multiply16(c, a[0], a[1], b.x);
          flushed(p * 16 + 16);
          multiply16(c, a[2], a[3], b.y);
        } else {
          multiply32<true>(c, a[0], a[1], a[2], a[3], b.x, b.y);
        }
        flushed(p * 16 + 32);
      } else if constexpr (packing == Packing::fp8) {
        const auto b = there ? *reinterpret_cast<const uint4*>(plane + p * 32) : uint4{};
        unsigned even[4];
        unsigned odd[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) widen8(a[j], even[j], odd[j]);
        multiply16(c, even[0], even[1], odd[0], odd[1], b.x, b.y);
        if constexpr (flush == 16) flushed(p * 16 + 16);
        multiply16(c, even[2], even[3], odd[2], odd[3], b.z, b.w);
        flushed(p * 16 + 32);
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (packing == Packing::int4) {
            const auto b = there ? *reinterpret_cast<const uint2*>(plane + (p + h) * 32) : uint2{};
            constexpr unsigned nibbles = 0x0f0f0f0fU;
            multiply32<false>(c, a[2 * h] & nibbles, a[2 * h + 1] & nibbles,
                              a[2 * h] >> 4 & nibbles, a[2 * h + 1] >> 4 & nibbles, b.x, b.y);
          } else {
            const auto b = there ? *reinterpret_cast<const uint4*>(plane + (p + h) * 64) : uint4{};
            unsigned upper[4];
            unsigned lower[4];
            widen4(a[2 * h], upper);
            widen4(a[2 * h + 1], lower);
            multiply16(c, upper[0], lower[0], upper[1], lower[1], b.x, b.y);
            multiply16(c, upper[2], lower[2], upper[3], lower[3], b.z, b.w);
          }
          flushed((p + h + 1) * 32);
        }
      }
    }
  }

 private:
  /// Flush `at` of the block whose first of the stage is `first`.
  __device__ __forceinline__ void scale(int first, int at, const float* sums, float counts,
                                        float (&scaled)[2], float (&totals)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = 0;
      if constexpr (halves) {
        sum = c[2 * h];
      } else {
        sum = static_cast<float>(c[2 * h] + 256 * c[2 * h + 1]);
      }
      c[2 * h] = c[2 * h + 1] = 0;
      if constexpr (row) {
        scaled[h] += sum;
      } else {
        const int factor = (lane / 4 + 8 * h) * F::factors + first + at;
        const float by = factors[factor];
        scaled[h] = fmaf(by, sum, scaled[h]);
        if constexpr (with_input_sums<packing, offsets>) {
          float offset = offsets ? factors[tile * F::factors + factor] : 0.0F;
          if constexpr (packing == Packing::int4) offset -= 8 * by;  // codes are 8 more
          totals[h] = fmaf(offset, counts * sums[at], totals[h]);
        }
      }
    }
  }
};

}  // namespace topkv::gpu
