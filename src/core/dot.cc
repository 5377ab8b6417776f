#include "src/core/dot.h"

#include <algorithm>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/dot.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

// Two keys are scored at a time with as many queries as the registers hold sums for: widening a key
// costs as much as two queries, so each key is widened once for all of them. Four sums of lanes
// cost little more than one when they are reduced together. The score of a query and a key is the
// same in any place of any block.
constexpr int pair = 2;
// 2 * 8 sums, two keys and an element of the query are 19 vectors; of 16 registers 2 * 6 leave
// room.
#if HWY_TARGET <= HWY_AVX3
constexpr int most_queries = 8;
#else
constexpr int most_queries = 6;
#endif

/// The sums of the lanes of four vectors: a and b to out[0..1], c and e to next[0..1].
template <class D>
HWY_INLINE void store_sums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float* out,
                           float* next) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  next[0] = hn::GetLane(c);
  next[1] = hn::GetLane(e);
#else
  const hn::Repartition<std::uint64_t, D> d64;
  // In every 128-bit block: [a0+a2, b0+b2, a1+a3, b1+b3], then [a, b, c, e].
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce));
  const auto blocks = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  const hn::CappedTag<float, 4> d4;
  const hn::CappedTag<float, 2> d2;
  const auto store = [&](auto four) {
    hn::StoreU(hn::LowerHalf(d2, four), d2, out);
    hn::StoreU(hn::UpperHalf(d2, four), d2, next);
  };
  if constexpr (hn::MaxLanes(d) == 16) {
    const hn::Half<D> dh;
    const auto halves = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
    store(hn::Add(hn::LowerHalf(d4, halves), hn::UpperHalf(d4, halves)));
  } else if constexpr (hn::MaxLanes(d) == 8) {
    store(hn::Add(hn::LowerHalf(d4, blocks), hn::UpperHalf(d4, blocks)));
  } else {
    store(blocks);
  }
#endif
}

/// scores of `queries` (1 to most_queries) queries with two keys; scores[q * stride + 0..1].
template <DType dtype, int queries>
HWY_INLINE void dot_pair(const float* query, std::int64_t dim, const std::byte* const* keys,
                         float* scores, std::int64_t stride) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t size = dtype == DType::f32 ? 4 : 2;
  V sums[queries][pair];
  // The pragmas matter: at -O2 GCC alone would keep the sums in memory, which is four times slower.
#pragma GCC unroll 8
  for (int q = 0; q < queries; ++q) {
    sums[q][0] = hn::Zero(d);
    sums[q][1] = hn::Zero(d);
  }
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const V a = load_float<dtype>(d, keys[0] + i * size);
    const V b = load_float<dtype>(d, keys[1] + i * size);
#pragma GCC unroll 8
    for (int q = 0; q < queries; ++q) {
      const V x = hn::LoadU(d, query + q * dim + i);
      sums[q][0] = hn::MulAdd(x, a, sums[q][0]);
      sums[q][1] = hn::MulAdd(x, b, sums[q][1]);
    }
  }
  float spare[pair];
#pragma GCC unroll 8
  for (int q = 0; q < queries; q += 2) {
    const int r = q + 1 < queries ? q + 1 : q;
    store_sums(d, sums[q][0], sums[q][1], sums[r][0], sums[r][1], scores + q * stride,
               q + 1 < queries ? scores + r * stride : spare);
  }
  for (; i < dim; ++i) {
    for (int r = 0; r < pair; ++r) {
      const float key = load_float_1<dtype>(keys[r] + i * size);
      for (int q = 0; q < queries; ++q) scores[q * stride + r] += query[q * dim + i] * key;
    }
  }
}

/// The same for any number of queries.
template <DType dtype, int most = most_queries>
HWY_INLINE void dot_pair_any(const float* queries, std::int64_t count, std::int64_t dim,
                             const std::byte* const* keys, float* scores, std::int64_t stride) {
  if constexpr (most > 0) {
    while (count >= most) {
      dot_pair<dtype, most>(queries, dim, keys, scores, stride);
      queries += most * dim;
      scores += most * stride;
      count -= most;
    }
    dot_pair_any<dtype, most - 1>(queries, count, dim, keys, scores, stride);
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

/// key_of(r) gives the address of key r, for r below `known`.
template <DType dtype, class KeyOf>
void dot_many(const float* queries, std::int64_t query_count, std::int64_t dim, KeyOf key_of,
              std::int64_t key_count, std::int64_t known, float* scores, std::int64_t stride) {
  const std::int64_t key_bytes = dim * (dtype == DType::f32 ? 4 : 2);
  std::int64_t r = 0;
  for (; r + pair <= key_count; r += pair) {
    const std::byte* keys[pair];
    for (std::int64_t j = 0; j < pair; ++j) {
      keys[j] = key_of(r + j);
      if (r + j + ahead < known) prefetch(key_of(r + j + ahead), key_bytes);
    }
    dot_pair_any<dtype>(queries, query_count, dim, keys, scores + r, stride);
  }
  if (r < key_count) {  // the last pair repeats its last key into a scratch row
    const std::byte* keys[pair] = {key_of(r), key_of(r)};
    for (std::int64_t q = 0; q < query_count; ++q) {
      float two[pair];
      dot_pair<dtype, 1>(queries + q * dim, dim, keys, two, pair);
      scores[q * stride + r] = two[0];
    }
  }
}

void dot_block_any(const float* queries, std::int64_t query_count, std::int64_t dim,
                   const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
                   std::int64_t key_count, float* scores, std::int64_t stride) {
  with_dtype(dtype, [&]<DType t>() {
    dot_many<t>(
        queries, query_count, dim, [=](std::int64_t r) { return keys + r * key_stride_bytes; },
        key_count, key_count + ahead,  // the keys behind a block are likely to be asked for next
        scores, stride);
  });
}

void dot_gather_any(const float* queries, std::int64_t query_count, std::int64_t dim,
                    const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
                    const std::int64_t* positions, std::int64_t key_count, float* scores,
                    std::int64_t stride) {
  with_dtype(dtype, [&]<DType t>() {
    dot_many<t>(
        queries, query_count, dim,
        [=](std::int64_t r) { return keys + positions[r] * key_stride_bytes; }, key_count,
        key_count, scores, stride);
  });
}

float dot_any(const float* query, const std::byte* key, DType dtype, std::int64_t dim) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  return with_dtype(dtype, [&]<DType t>() {
    constexpr std::int64_t size = t == DType::f32 ? 4 : 2;
    auto even = hn::Zero(d);
    auto odd = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + 2 * lanes <= dim; i += 2 * lanes) {
      even = hn::MulAdd(hn::LoadU(d, query + i), load_float<t>(d, key + i * size), even);
      odd = hn::MulAdd(hn::LoadU(d, query + i + lanes), load_float<t>(d, key + (i + lanes) * size),
                       odd);
    }
    for (; i + lanes <= dim; i += lanes) {
      even = hn::MulAdd(hn::LoadU(d, query + i), load_float<t>(d, key + i * size), even);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
    for (; i < dim; ++i) sum += query[i] * load_float_1<t>(key + i * size);
    return sum;
  });
}

float dot_stored_any(const std::byte* a, const std::byte* b, DType dtype, std::int64_t dim) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  return with_dtype(dtype, [&]<DType t>() {
    constexpr std::int64_t size = t == DType::f32 ? 4 : 2;
    auto total = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      total = hn::MulAdd(load_float<t>(d, a + i * size), load_float<t>(d, b + i * size), total);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, total));
    for (; i < dim; ++i) sum += load_float_1<t>(a + i * size) * load_float_1<t>(b + i * size);
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

float dot(const float* query, const std::byte* key, DType dtype, std::int64_t dim) {
  return HWY_DYNAMIC_DISPATCH(dot_any)(query, key, dtype, dim);
}

float dot_stored(const std::byte* a, const std::byte* b, DType dtype, std::int64_t dim) {
  return HWY_DYNAMIC_DISPATCH(dot_stored_any)(a, b, dtype, dim);
}

void dot_block(const float* queries, std::int64_t query_count, std::int64_t dim,
               const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
               std::int64_t key_count, float* scores, std::int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(dot_block_any)
  (queries, query_count, dim, keys, dtype, key_stride_bytes, key_count, scores, scores_stride);
}

void dot_gather(const float* queries, std::int64_t query_count, std::int64_t dim,
                const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
                const std::int64_t* positions, std::int64_t key_count, float* scores,
                std::int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(dot_gather_any)
  (queries, query_count, dim, keys, dtype, key_stride_bytes, positions, key_count, scores,
   scores_stride);
}

}  // namespace topkv
#endif
