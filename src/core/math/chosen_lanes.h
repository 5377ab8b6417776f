// chosen_first(d, v, mask): the lanes of a vector that a mask chooses, in their order, at its
// front; behind them stands anything. For lanes of 32 bits. Include it after simd.h; like that, it
// has no include guard against a second target.
//
// Highway's own Compress has its table for AVX2 in a local array, of which GCC makes a copy of 1
// KiB on the stack for each vector.

#if defined(TOPKV_CHOSEN_LANES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOPKV_CHOSEN_LANES_H_
#undef TOPKV_CHOSEN_LANES_H_
#else
#define TOPKV_CHOSEN_LANES_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#ifndef TOPKV_CHOSEN_LANES_ONCE
#define TOPKV_CHOSEN_LANES_ONCE
namespace topkv {

/// of[bits][i]: the number of the i-th bit that is set.
struct ChosenLanes {
  alignas(8) std::uint8_t of[256][8];
  constexpr ChosenLanes() : of() {
    for (unsigned bits = 0; bits < 256; ++bits) {
      unsigned found = 0;
      for (unsigned i = 0; i < 8; ++i) {
        if ((bits >> i & 1U) != 0) of[bits][found++] = static_cast<std::uint8_t>(i);
      }
    }
  }
};
inline constexpr ChosenLanes chosen_lanes;

}  // namespace topkv
#endif

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> chosen_first(D d, hn::Vec<D> v, hn::Mask<D> mask) {
#if HWY_TARGET == HWY_AVX2
  const hn::Repartition<float, D> df;
  const hn::RebindToSigned<D> di;
  const int bits = _mm256_movemask_ps(hn::BitCast(df, hn::VecFromMask(d, mask)).raw);
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(chosen_lanes.of[bits]));
  const __m256i from = _mm256_cvtepu8_epi32(bytes);
  const __m256i chosen = _mm256_permutevar8x32_epi32(hn::BitCast(di, v).raw, from);
  return hn::BitCast(d, hn::Vec<decltype(di)>{chosen});
#else
  (void)d;
  return hn::Compress(v, mask);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#endif
