// A tile of queries and its running softmax over keys, a few hundred at a time (flash attention):
// what dense and sparse attention of many tokens share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/core/math/matrix_product.h"
#include "src/core/math/row_format.h"
#include "src/core/math/vector_math.h"

namespace topkv {

inline constexpr std::int64_t key_tile = 256;    // keys scored by one matrix product
inline constexpr std::int64_t query_tile = 192;  // queries (tokens x group) per tile

/// Scratch of one thread, grown once and kept, so that a decode step does not allocate.
struct TileScratch {
  std::vector<float> queries, keys, values, scores, out, high, sum;

  void resize(std::int64_t m, std::int64_t d) {
    const auto grow = [](std::vector<float>& v, std::int64_t n) {
      if (static_cast<std::int64_t>(v.size()) < n) v.resize(static_cast<std::size_t>(n));
    };
    grow(queries, m * d);
    grow(keys, key_tile * d);
    grow(values, key_tile * d);
    grow(scores, m * key_tile);
    grow(out, m * d);
    grow(high, m);
    grow(sum, m);
  }
};

/// The queries of one tile: tokens [begin, end) of the block, all heads of one group.
struct QueryTile {
  const TokenQueries& queries;
  const CausalWindow& visible;
  std::int64_t begin, end;   // tokens
  std::int64_t head, group;  // first query head, heads
  std::int64_t dim;
  float scale, softcap;

  std::int64_t count() const { return (end - begin) * group; }
  std::int64_t position(std::int64_t row) const { return queries.first + begin + row / group; }
};

/// One step of flash attention: keys at `runs`, at most key_tile together, join the running softmax
/// in scratch.
inline void add_keys(const QueryTile& tile, const RowSpan& span,
                     std::span<const PositionRange> runs, TileScratch& s) {
  const std::int64_t m = tile.count();
  const std::int64_t d = tile.dim;
  std::int64_t n = 0;
  for (const PositionRange& run : runs) {
    for (std::int64_t x = run.begin; x < run.end; ++x, ++n) {
      span.key(x, &s.keys[static_cast<std::size_t>(n * d)]);
      span.value(x, &s.values[static_cast<std::size_t>(n * d)]);
    }
  }
  matrix_product(Transposed::yes, m, n, d, s.queries.data(), d, s.keys.data(), d, 0,
                 s.scores.data(), key_tile);
  for (std::int64_t row = 0; row < m; ++row) {
    const auto at = static_cast<std::size_t>(row);
    float* scores = &s.scores[at * key_tile];
    const std::int64_t p = tile.position(row);
    if (tile.softcap > 0) soft_cap(scores, n, tile.softcap);
    std::int64_t column = 0;  // of the run's first key
    for (const PositionRange& run : runs) {
      const auto hide = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t x = std::max(begin, run.begin); x < std::min(end, run.end); ++x)
          scores[column + x - run.begin] = empty_lse;
      };
      hide(tile.visible.sinks, tile.visible.begin(p));
      hide(p + 1, run.end);
      column += run.size();
    }
    const float high = std::max(s.high[at], max_of(scores, n));
    if (high == empty_lse) {  // nothing visible yet
      std::fill(scores, scores + n, 0.0F);
      continue;
    }
    if (high > s.high[at]) {
      const float shrink = std::exp(s.high[at] - high);
      scale_by(&s.out[static_cast<std::size_t>(row * d)], d, shrink);
      s.sum[at] *= shrink;
      s.high[at] = high;
    }
    s.sum[at] += exp_shifted(scores, n, high);
  }
  matrix_product(Transposed::no, m, d, n, s.scores.data(), key_tile, s.values.data(), d, 1,
                 s.out.data(), d);
}

/// Takes the queries of the tile, before any key.
inline void begin_tile(const QueryTile& tile, TileScratch& s) {
  const std::int64_t m = tile.count();
  const std::int64_t d = tile.dim;
  s.resize(m, d);
  for (std::int64_t row = 0; row < m; ++row) {
    const float* q =
        tile.queries.query(tile.begin + row / tile.group, tile.head + row % tile.group);
    std::copy(q, q + d, &s.queries[static_cast<std::size_t>(row * d)]);
  }
  scale_by(s.queries.data(), m * d, tile.scale);
  std::fill_n(s.out.begin(), m * d, 0.0F);
  std::fill_n(s.high.begin(), m, empty_lse);
  std::fill_n(s.sum.begin(), m, 0.0F);
}

/// Writes the tile's partial; out_row(row) gives where a query's output and lse go.
template <class OutRow>
void end_tile(const QueryTile& tile, const TileScratch& s, OutRow out_row) {
  const std::int64_t d = tile.dim;
  for (std::int64_t row = 0; row < tile.count(); ++row) {
    const auto [out, lse] = out_row(row);
    const float sum = s.sum[static_cast<std::size_t>(row)];
    *lse = sum > 0 ? s.high[static_cast<std::size_t>(row)] + std::log(sum) : empty_lse;
    std::copy_n(&s.out[static_cast<std::size_t>(row * d)], d, out);
    if (sum > 0) scale_by(out, d, 1.0F / sum);
  }
}

}  // namespace topkv
