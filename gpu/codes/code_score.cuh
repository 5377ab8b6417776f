// Scores of keys from their codes, by integer tensor cores. The sample and the pass share them. The
// layouts of the fragments are in the PTX ISA, "Matrix Fragments for mma.m16n8k32".
#pragma once

#include <cstdint>

#include "gpu/codes/code_format.cuh"
#include "gpu/codes/code_scan.h"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {

// An integer below 2^22 added to the bits of this float is added to its value: 1.5 * 2^23.
//
// Sums and what they begin with stay below that, together: bytes of coefficients are at most 128,
// and what they meet in a byte of a code at most 3 + 12 + 48 + 192 = 255, so that sums are below
// 64 * 128 * 255 < 2^21. In 256 lo, the unit of the high ones, scores (below 2^19 + 2^20 from 0;
// lo: prepare_kernel) lie less than 2^21 apart, and a reference, of which they are less, at most
// 30 / (256 lo) < 2^21 above the best of them, as lo is at least 2^-24.
inline constexpr float magic = 12582912.0F;
inline constexpr int magic_bits = 0x4B400000;
inline constexpr float log2_of_e = 1.44269504F;

/// The unit that is number i of the sample of a range. They ascend.
__device__ __forceinline__ int sampled_unit(const ScanRange& range, int i) {
  const int first = range.begin / unit_keys;
  const int units = (range.end + unit_keys - 1) / unit_keys - first;
  if (units <= scan_sample_units) return first + i;
  const auto begin = static_cast<std::int64_t>(units) * i / scan_sample_units;
  const auto end = static_cast<std::int64_t>(units) * (i + 1) / scan_sample_units;
  // Not every n-th: text that repeats may have the same period.
  const std::uint32_t hash = static_cast<std::uint32_t>(i) * 0x9E3779B1U >> 8;
  return first + static_cast<int>(begin) +
         static_cast<int>(hash % static_cast<std::uint32_t>(end - begin));
}

/// A form of the query of one query head.
__device__ __forceinline__ const float* query_of(const CodeScan& scan, int form, int head_step,
                                                 int g) {
  const int head = head_step % scan.kv_heads;
  return scan.token[head_step / scan.kv_heads].query[form] +
         (head * scan.group + g) * scan.head_dim;
}

/// Spreads rows evenly over lists, by their positions alone. (Constants: xxHash, Y. Collet.)
__device__ __forceinline__ int list_of(int position, int lists) {
  unsigned hash = static_cast<unsigned>(position) * 0x9E3779B1U;
  hash = (hash ^ hash >> 15) * 0x85EBCA77U;
  return static_cast<int>(__umulhi(hash, static_cast<unsigned>(lists)));
}

/// cap * tanh(score / cap), by tanh x = 1 - 2 / (e^(2x) + 1), to cap * 2^-20. `less` of it, if that
/// is given.
struct SoftCap {
  float cap, rate;

  __device__ __forceinline__ explicit SoftCap(float cap) : cap(cap), rate(2 * log2_of_e / cap) {}
  __device__ __forceinline__ float of(float score, float less = 0) const {
    // Where 2^x overflows, its inverse is 0; where it vanishes, 1.
    return fmaf(-2 * cap, reciprocal_fast(exp2_fast(score * rate) + 1), cap - less);
  }
};

/// Waits for the results of the kernel before this one, which may still run.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/// c[16, 8] += a[16, 32] b[32, 8], of signed and unsigned bytes.
__device__ __forceinline__ void mma_bytes(int (&c)[4], const std::uint32_t* a, std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// What one lane keeps of the queries of a KV head's group: rows 0 to 7 of the coefficients are the
/// high bytes of the heads', rows 8 to 15 the low ones.
template <int K>
struct KeyScores {
  static constexpr int parts = K / part_bytes;
  std::uint32_t coefficients[parts][2 * key_fields];
  float lo, add;  // of head lane / 4
  int high, low;  // what sums begin with

  __device__ __forceinline__ void load(const std::uint8_t* from, int lane) {
    const int r = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int p = 0; p < parts; ++p) {
#pragma unroll
      for (int f = 0; f < key_fields; ++f) {
        const auto word = [&](int row) {
          return *reinterpret_cast<const std::uint32_t*>(from + row * key_slots(K) + K * f +
                                                         part_bytes * p + 4 * t);
        };
        coefficients[p][2 * f] = word(r);
        coefficients[p][2 * f + 1] = word(r + 8);
      }
    }
  }

  /// Of the keys 8 i + 2 (lane % 4) and the next, for head lane / 4, in units of log2; word(p):
  /// that of part p, of lane / 4 and lane % 4 (code_format.cuh).
  template <class Word>
  __device__ __forceinline__ float2 of(const Word& word) const {
    int c[4] = {high, high, low, low};
#pragma unroll
    for (int p = 0; p < parts; ++p) {
      const std::uint32_t w = word(p);
      mma_bytes(c, coefficients[p], w & 0x03030303U, w & 0x0C0C0C0CU);
      mma_bytes(c, coefficients[p] + 4, w & 0x30303030U, w & 0xC0C0C0C0U);
    }
    const float hi = 256 * lo;
    return {fmaf(__int_as_float(c[2]), lo, fmaf(__int_as_float(c[0]), hi, add)),
            fmaf(__int_as_float(c[3]), lo, fmaf(__int_as_float(c[1]), hi, add))};
  }
};

/// `add` (log2) as starts of the sums, so that it costs nothing: high, low of KeyScores.
__device__ __forceinline__ void split_offset(float add, float lo, int* high, int* low) {
  *high = __float2int_rd(add / (256 * lo));
  *low = __float2int_rn((add - static_cast<float>(*high) * (256 * lo)) / lo);
}

}  // namespace topkv::gpu
