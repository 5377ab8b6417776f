#include "src/core/math/dot.h"

#include <algorithm>
#include <vector>

#include "src/core/math/key_bias.h"
#include "src/core/math/row_format.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/dot.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

// Keys are scored four at a time: four sums of lanes cost little more than one when they are
// reduced together. A key's score is the same in any place of a quad and any block.
constexpr int quad = 4;

/// out[0..3] = the sums of the lanes of four vectors.
template <class D>
HWY_INLINE void store_sums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e,
                           float* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const hn::Repartition<std::uint64_t, D> d64;
  // In every 128-bit block: [a0+a2, b0+b2, a1+a3, b1+b3], then [a, b, c, e].
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const auto blocks = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  const hn::CappedTag<float, 4> d4;
  if constexpr (hn::MaxLanes(d) == 16) {
    const hn::Half<D> dh;
    const auto halves = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
    hn::StoreU(hn::Add(hn::LowerHalf(d4, halves), hn::UpperHalf(d4, halves)), d4, out);
  } else if constexpr (hn::MaxLanes(d) == 8) {
    hn::StoreU(hn::Add(hn::LowerHalf(d4, blocks), hn::UpperHalf(d4, blocks)), d4, out);
  } else {
    hn::StoreU(blocks, d4, out);
  }
#endif
}

/// scores of `queries` (1 to 4) queries with four keys; scores[q * stride + 0..3].
template <DType dtype, int queries>
HWY_INLINE void dot_quad(const float* query, std::int64_t dim, const std::byte* const* keys,
                         const float* channels, const float* const* biases, float* scores,
                         std::int64_t stride) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sums[queries][quad];
  // The pragmas matter: at -O2 GCC alone would keep the sums in memory, which is four times slower.
#pragma GCC unroll 4
  for (int q = 0; q < queries; ++q) {
#pragma GCC unroll 4
    for (int r = 0; r < quad; ++r) sums[q][r] = hn::Zero(d);
  }
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    V key[quad];
#pragma GCC unroll 4
    for (int r = 0; r < quad; ++r) key[r] = load_at<dtype>(d, keys[r], i, channels, biases[r]);
#pragma GCC unroll 4
    for (int q = 0; q < queries; ++q) {
      const V x = hn::LoadU(d, query + q * dim + i);
#pragma GCC unroll 4
      for (int r = 0; r < quad; ++r) sums[q][r] = hn::MulAdd(x, key[r], sums[q][r]);
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < queries; ++q) {
    store_sums(d, sums[q][0], sums[q][1], sums[q][2], sums[q][3], scores + q * stride);
  }
  for (; i < dim; ++i) {
    for (int r = 0; r < quad; ++r) {
      const float key = load_at_1<dtype>(keys[r], i, channels, biases[r]);
      for (int q = 0; q < queries; ++q) scores[q * stride + r] += query[q * dim + i] * key;
    }
  }
}

template <DType dtype>
HWY_INLINE void dot_quad_any(const float* queries, std::int64_t count, std::int64_t dim,
                             const std::byte* const* keys, const float* channels,
                             const float* const* biases, float* scores, std::int64_t stride) {
  std::int64_t q = 0;
  for (; q + 4 <= count; q += 4) {
    dot_quad<dtype, 4>(queries + q * dim, dim, keys, channels, biases, scores + q * stride, stride);
  }
  switch (count - q) {
    case 3:
      dot_quad<dtype, 3>(queries + q * dim, dim, keys, channels, biases, scores + q * stride,
                         stride);
      break;
    case 2:
      dot_quad<dtype, 2>(queries + q * dim, dim, keys, channels, biases, scores + q * stride,
                         stride);
      break;
    case 1:
      dot_quad<dtype, 1>(queries + q * dim, dim, keys, channels, biases, scores + q * stride,
                         stride);
      break;
    default:
      break;
  }
}

// Keys are prefetched this many keys ahead: far enough to cover memory latency, near enough to
// stay in the first-level cache.
constexpr std::int64_t ahead = 24;

HWY_INLINE void prefetch(const std::byte* key, std::int64_t bytes) {
  for (std::int64_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(key + offset);
  }
  __builtin_prefetch(key + bytes - 1);  // a key that begins within a line ends in one more
}

constexpr std::int64_t most_queries = 4;  // of a loop over a quad's elements

/// Memory of this thread for a quad of keys.
std::vector<float>& widened() {
  thread_local std::vector<float> keys;
  return keys;
}

/// position_of(r) gives the position of key r, for r below `known`.
template <DType dtype, class PositionOf>
void dot_many(const float* queries, std::int64_t query_count, const KeyView& all,
              PositionOf position_of, std::int64_t key_count, std::int64_t known, float* scores,
              std::int64_t stride) {
  const auto key_of = [&](std::int64_t r) { return all.key(position_of(r)); };
  const std::int64_t dim = all.dim;
  const std::int64_t key_bytes = vector_bytes(dtype, dim);
  const float* channels = channels_of(all);
  // Keys in blocks that more queries meet than one loop takes are widened once.
  const bool widens = in_blocks(dtype) && query_count > most_queries;
  std::vector<float>& wide = widened();
  if (widens) wide.resize(static_cast<std::size_t>(quad * dim));
  std::int64_t r = 0;
  for (; r + quad <= key_count; r += quad) {
    const std::byte* keys[quad];
    const float* biases[quad];
    for (int j = 0; j < quad; ++j) {
      keys[j] = key_of(r + j);
      biases[j] = bias_at(all, position_of(r + j), j);
      if (r + j + ahead < known) prefetch(key_of(r + j + ahead), key_bytes);
      if (!widens) continue;
      float* const to = &wide[static_cast<std::size_t>(j * dim)];
      widen<dtype>(Floats(), keys[j], dim, channels, biases[j], to);
      keys[j] = reinterpret_cast<const std::byte*>(to);
    }
    if (widens) {
      dot_quad_any<DType::f32>(queries, query_count, dim, keys, nullptr, biases, scores + r,
                               stride);
    } else {
      dot_quad_any<dtype>(queries, query_count, dim, keys, channels, biases, scores + r, stride);
    }
  }
  if (r < key_count) {  // the last quad repeats its last key into a scratch row
    const std::byte* keys[quad];
    const float* biases[quad];
    for (int j = 0; j < quad; ++j) {
      const std::int64_t at = std::min(r + j, key_count - 1);
      keys[j] = key_of(at);
      biases[j] = bias_at(all, position_of(at), j);
    }
    for (std::int64_t q = 0; q < query_count; ++q) {
      float four[quad];
      dot_quad<dtype, 1>(queries + q * dim, dim, keys, channels, biases, four, quad);
      std::copy(four, four + (key_count - r), scores + q * stride + r);
    }
  }
}

void dot_block_any(const float* queries, std::int64_t query_count, const KeyView& keys,
                   float* scores, std::int64_t stride) {
  with_stored(keys.dtype, [&]<DType t>() {
    dot_many<t>(
        queries, query_count, keys, [](std::int64_t r) { return r; }, keys.count,
        keys.count + ahead,  // the keys behind a block are likely to be asked for next
        scores, stride);
  });
}

void dot_gather_any(const float* queries, std::int64_t query_count, const KeyView& keys,
                    const std::int64_t* positions, std::int64_t key_count, float* scores,
                    std::int64_t stride) {
  with_stored(keys.dtype, [&]<DType t>() {
    dot_many<t>(
        queries, query_count, keys, [&](std::int64_t r) { return positions[r]; }, key_count,
        key_count, scores, stride);
  });
}

float dot_any(const float* query, const KeyView& keys, std::int64_t position) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::byte* key = keys.key(position);
  const std::int64_t dim = keys.dim;
  const float* channels = channels_of(keys);
  const float* bias = bias_at(keys, position);
  return with_stored(keys.dtype, [&]<DType t>() {
    auto even = hn::Zero(d);
    auto odd = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + 2 * lanes <= dim; i += 2 * lanes) {
      even = hn::MulAdd(hn::LoadU(d, query + i), load_at<t>(d, key, i, channels, bias), even);
      odd = hn::MulAdd(hn::LoadU(d, query + i + lanes),
                       load_at<t>(d, key, i + lanes, channels, bias), odd);
    }
    for (; i + lanes <= dim; i += lanes) {
      even = hn::MulAdd(hn::LoadU(d, query + i), load_at<t>(d, key, i, channels, bias), even);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
    for (; i < dim; ++i) sum += query[i] * load_at_1<t>(key, i, channels, bias);
    return sum;
  });
}

float dot_stored_any(const KeyView& keys, std::int64_t first, std::int64_t second) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::byte* a = keys.key(first);
  const std::byte* b = keys.key(second);
  const std::int64_t dim = keys.dim;
  const float* channels = channels_of(keys);
  const float* bias_a = bias_at(keys, first, 0);
  const float* bias_b = bias_at(keys, second, 1);
  return with_stored(keys.dtype, [&]<DType t>() {
    auto total = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      total = hn::MulAdd(load_at<t>(d, a, i, channels, bias_a),
                         load_at<t>(d, b, i, channels, bias_b), total);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, total));
    for (; i < dim; ++i)
      sum += load_at_1<t>(a, i, channels, bias_a) * load_at_1<t>(b, i, channels, bias_b);
    return sum;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(dot_block_any);
HWY_EXPORT(dot_gather_any);
HWY_EXPORT(dot_any);
HWY_EXPORT(dot_stored_any);

float dot(const float* query, const KeyView& keys, std::int64_t position) {
  return HWY_DYNAMIC_DISPATCH(dot_any)(query, keys, position);
}

float dot_stored(const KeyView& keys, std::int64_t a, std::int64_t b) {
  return HWY_DYNAMIC_DISPATCH(dot_stored_any)(keys, a, b);
}

void dot_block(const float* queries, std::int64_t query_count, const KeyView& keys, float* scores,
               std::int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(dot_block_any)(queries, query_count, keys, scores, scores_stride);
}

void dot_gather(const float* queries, std::int64_t query_count, const KeyView& keys,
                const std::int64_t* positions, std::int64_t key_count, float* scores,
                std::int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(dot_gather_any)
  (queries, query_count, keys, positions, key_count, scores, scores_stride);
}

}  // namespace topkv
#endif
