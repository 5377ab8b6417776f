#include "src/core/math/index_scores.h"

#include <limits>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/index_scores.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using IndexFloats = hn::CappedTag<float, 16>;

// A pass over the elements takes some queries and three vectors of keys: as many sums as there are
// registers for, so that a loaded value serves several products.
constexpr int key_vectors = 3;
constexpr int most_pass_heads = hn::MaxLanes(IndexFloats()) == 16 ? 8 : 4;

/// Adds the weighted products of `heads` queries with the keys of `key_vectors` vectors to sums.
template <int heads>
HWY_INLINE void add_heads(const float* queries, const float* weights, std::int64_t dim, bool relu,
                          const float* tile, hn::Vec<IndexFloats>* sums) {
  const IndexFloats d;
  using V = hn::Vec<IndexFloats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V dots[heads][key_vectors];
  // The pragmas matter, as in dot.cc: the sums must stay in registers.
#pragma GCC unroll 8
  for (int h = 0; h < heads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < key_vectors; ++v) dots[h][v] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    V key[key_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < key_vectors; ++v)
      key[v] = hn::LoadU(d, tile + i * index_key_tile + v * lanes);
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h) {
      const V x = hn::Set(d, queries[h * dim + i]);
#pragma GCC unroll 4
      for (int v = 0; v < key_vectors; ++v) dots[h][v] = hn::MulAdd(x, key[v], dots[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < heads; ++h) {
    const V weight = hn::Set(d, weights == nullptr ? 1.0F : weights[h]);
#pragma GCC unroll 4
    for (int v = 0; v < key_vectors; ++v) {
      const V x = relu ? hn::Max(dots[h][v], hn::Zero(d)) : dots[h][v];
      sums[v] = hn::MulAdd(weight, x, sums[v]);
    }
  }
}

void score_tile_any(const float* queries, const float* weights, std::int64_t heads,
                    std::int64_t dim, IndexScore score, const float* tile, float* scores) {
  const IndexFloats d;
  using V = hn::Vec<IndexFloats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const bool relu = score == IndexScore::relu;
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t key = 0; key < index_key_tile; key += key_vectors * lanes) {
    V sums[key_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < key_vectors; ++v) sums[v] = hn::Zero(d);
    for (std::int64_t h = 0; h < heads;) {
      const float* const q = queries + h * dim;
      const float* const w = weights == nullptr ? nullptr : weights + h;
      const std::int64_t left = heads - h;
      if (most_pass_heads == 8 && left >= 8) {
        add_heads<most_pass_heads>(q, w, dim, relu, tile + key, sums);
        h += most_pass_heads;
      } else if (left >= 4) {
        add_heads<4>(q, w, dim, relu, tile + key, sums);
        h += 4;
      } else if (left >= 2) {
        add_heads<2>(q, w, dim, relu, tile + key, sums);
        h += 2;
      } else {
        add_heads<1>(q, w, dim, relu, tile + key, sums);
        h += 1;
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < key_vectors; ++v) {
      const V known = hn::IfThenElse(hn::Eq(sums[v], sums[v]), sums[v], lowest);
      hn::StoreU(known, d, scores + key + v * lanes);
    }
  }
}

template <DType dtype>
HWY_INLINE void put_keys(const KeyView& keys, float* tile) {
  constexpr std::int64_t element = dtype == DType::f32 ? 4 : 2;
  std::int64_t r = 0;
  std::int64_t whole = 0;  // elements that are put four at a time
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d;
  whole = keys.dim / 4 * 4;
  for (; r + 4 <= keys.count; r += 4) {
    for (std::int64_t i = 0; i < whole; i += 4) {
      const auto a = load_float<dtype>(d, keys.key(r) + i * element);
      const auto b = load_float<dtype>(d, keys.key(r + 1) + i * element);
      const auto c = load_float<dtype>(d, keys.key(r + 2) + i * element);
      const auto e = load_float<dtype>(d, keys.key(r + 3) + i * element);
      // [a0, c0, a1, c1] and [b0, e0, b1, e1] make [a0, b0, c0, e0] and [a1, b1, c1, e1].
      const auto ac = hn::InterleaveLower(d, a, c);
      const auto be = hn::InterleaveLower(d, b, e);
      const auto ac_high = hn::InterleaveUpper(d, a, c);
      const auto be_high = hn::InterleaveUpper(d, b, e);
      float* const to = tile + i * index_key_tile + r;
      hn::StoreU(hn::InterleaveLower(d, ac, be), d, to);
      hn::StoreU(hn::InterleaveUpper(d, ac, be), d, to + index_key_tile);
      hn::StoreU(hn::InterleaveLower(d, ac_high, be_high), d, to + 2 * index_key_tile);
      hn::StoreU(hn::InterleaveUpper(d, ac_high, be_high), d, to + 3 * index_key_tile);
    }
  }
#endif
  const std::int64_t quads = r;
  for (r = 0; r < keys.count; ++r) {
    for (std::int64_t i = r < quads ? whole : 0; i < keys.dim; ++i)
      tile[i * index_key_tile + r] = load_float_1<dtype>(keys.key(r) + i * element);
  }
}

void put_in_tile_any(const KeyView& keys, std::int64_t column, float* tile) {
  if (keys.dtype == DType::f32) return put_keys<DType::f32>(keys, tile + column);
  put_keys<DType::bf16>(keys, tile + column);
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(score_tile_any);
HWY_EXPORT(put_in_tile_any);

void put_in_tile(const KeyView& keys, std::int64_t column, float* tile) {
  HWY_DYNAMIC_DISPATCH(put_in_tile_any)(keys, column, tile);
}

void score_tile(const float* queries, const float* weights, std::int64_t heads, std::int64_t dim,
                IndexScore score, const float* tile, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_tile_any)(queries, weights, heads, dim, score, tile, scores);
}

}  // namespace topkv
#endif
