#include "src/core/weighted_sum.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/weighted_sum.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

/// `vectors` vectors of elements from i on, of `sums` sums from `first` on: these stay in registers
/// while the stored vectors pass by.
template <DType dtype, int sums, int vectors>
HWY_INLINE void add_block(const WeightedVectors& of, std::int64_t first, std::int64_t i,
                          float* all) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t size = dtype == DType::f32 ? 4 : 2;
  const float* weights = of.weights + first * of.weights_stride;
  float* out = all + first * of.dim + i;
  V total[sums][vectors];
#pragma GCC unroll 4
  for (int s = 0; s < sums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) total[s][v] = hn::LoadU(d, out + s * of.dim + v * lanes);
  }
  for (std::int64_t r = 0; r < of.count; ++r) {
    const std::byte* from = of.stored + of.positions[r] * of.stride_bytes + i * size;
    V x[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) x[v] = load_float<dtype>(d, from + v * lanes * size);
#pragma GCC unroll 4
    for (int s = 0; s < sums; ++s) {
      const V weight = hn::Set(d, weights[s * of.weights_stride + r]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) total[s][v] = hn::MulAdd(weight, x[v], total[s][v]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < sums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) hn::StoreU(total[s][v], d, out + s * of.dim + v * lanes);
  }
}

template <DType dtype, int sums>
HWY_INLINE void add_sums(const WeightedVectors& of, std::int64_t first, float* all) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  constexpr std::int64_t size = dtype == DType::f32 ? 4 : 2;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= of.dim; i += 2 * lanes) add_block<dtype, sums, 2>(of, first, i, all);
  for (; i + lanes <= of.dim; i += lanes) add_block<dtype, sums, 1>(of, first, i, all);
  for (; i < of.dim; ++i) {
    for (int s = 0; s < sums; ++s) {
      float& out = all[(first + s) * of.dim + i];
      for (std::int64_t r = 0; r < of.count; ++r) {
        out += of.weights[(first + s) * of.weights_stride + r] *
               load_float_1<dtype>(of.stored + of.positions[r] * of.stride_bytes + i * size);
      }
    }
  }
}

void add_weighted_any(const WeightedVectors& of, float* out) {
  with_dtype(of.dtype, [&]<DType t>() {
    std::int64_t s = 0;
    for (; s + 4 <= of.sums; s += 4) add_sums<t, 4>(of, s, out);
    if (of.sums - s == 3) add_sums<t, 3>(of, s, out);
    if (of.sums - s == 2) add_sums<t, 2>(of, s, out);
    if (of.sums - s == 1) add_sums<t, 1>(of, s, out);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(add_weighted_any);

void add_weighted(const WeightedVectors& vectors, float* out) {
  HWY_DYNAMIC_DISPATCH(add_weighted_any)(vectors, out);
}

}  // namespace topkv
#endif
