#include "src/core/math/weighted_sum.h"

#include "src/core/math/row_format.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/weighted_sum.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

/// `vectors` vectors of elements from i on, of `sums` sums from `first` on: these stay in registers
/// while the stored vectors pass by.
template <DType dtype, int sums, int vectors>
HWY_INLINE void add_block(const WeightedVectors& of, const float* channels, std::int64_t first,
                          std::int64_t i, float* all) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = of.stored.dim;
  const float* weights = of.weights + first * of.weights_stride;
  float* out = all + first * dim + i;
  V total[sums][vectors];
#pragma GCC unroll 8
  for (int s = 0; s < sums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) total[s][v] = hn::LoadU(d, out + s * dim + v * lanes);
  }
  for (std::int64_t r = 0; r < of.count; ++r) {
    const std::byte* from = of.stored.key(of.positions[r]);
    V x[vectors];
    load_some<dtype, vectors>(d, from, i, channels, nullptr, x);
#pragma GCC unroll 8
    for (int s = 0; s < sums; ++s) {
      const V weight = hn::Set(d, weights[s * of.weights_stride + r]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) total[s][v] = hn::MulAdd(weight, x[v], total[s][v]);
    }
  }
#pragma GCC unroll 8
  for (int s = 0; s < sums; ++s) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) hn::StoreU(total[s][v], d, out + s * dim + v * lanes);
  }
}

template <DType dtype, int sums>
HWY_INLINE void add_sums(const WeightedVectors& of, const float* channels, std::int64_t first,
                         float* all) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  const std::int64_t dim = of.stored.dim;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes)
    add_block<dtype, sums, 2>(of, channels, first, i, all);
  for (; i + lanes <= dim; i += lanes) add_block<dtype, sums, 1>(of, channels, first, i, all);
  for (; i < dim; ++i) {
    for (int s = 0; s < sums; ++s) {
      float& out = all[(first + s) * dim + i];
      for (std::int64_t r = 0; r < of.count; ++r) {
        out += of.weights[(first + s) * of.weights_stride + r] *
               load_at_1<dtype>(of.stored.key(of.positions[r]), i, channels, nullptr);
      }
    }
  }
}

// Sums at once: more where it takes long to widen what is read, and AVX-512 has registers for them.
template <DType dtype>
constexpr int at_once = in_blocks(dtype) && hn::MaxLanes(Floats()) >= 16 ? 8 : 4;

/// The sums from s on, at most `most`.
template <DType dtype, int most>
HWY_INLINE void add_rest(const WeightedVectors& of, const float* channels, std::int64_t s,
                         float* out) {
  if constexpr (most > 0) {
    if (of.sums - s == most) return add_sums<dtype, most>(of, channels, s, out);
    add_rest<dtype, most - 1>(of, channels, s, out);
  }
}

void add_weighted_any(const WeightedVectors& of, float* out) {
  const float* channels = channels_of(of.stored);
  with_stored(of.stored.dtype, [&]<DType t>() {
    std::int64_t s = 0;
    for (; s + at_once<t> <= of.sums; s += at_once<t>)
      add_sums<t, at_once<t>>(of, channels, s, out);
    add_rest<t, at_once<t> - 1>(of, channels, s, out);
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
