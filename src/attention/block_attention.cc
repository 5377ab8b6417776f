#include "src/attention/block_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/math/matrix_product.h"
#include "src/core/math/row_format.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t key_tile = 256;           // keys scored by one matrix product
constexpr std::int64_t query_tile = 192;         // queries (tokens x group) per tile
constexpr std::int64_t rows_per_task = 1 << 16;  // keys before a tile is split over tasks

/// Scratch of one thread, grown once and kept, so that a decode step does not allocate.
struct Scratch {
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
struct Tile {
  const TokenQueries& queries;
  const CausalWindow& visible;
  std::int64_t begin, end;   // tokens
  std::int64_t head, group;  // first query head, heads
  std::int64_t dim;
  float scale, softcap;

  std::int64_t count() const { return (end - begin) * group; }
  std::int64_t position(std::int64_t row) const { return queries.first + begin + row / group; }
};

/// One flash-attention step: keys [from, to) of the span join the running softmax in scratch.
void add_key_tile(const Tile& tile, const RowSpan& span, std::int64_t from, std::int64_t to,
                  Scratch& s) {
  const std::int64_t m = tile.count();
  const std::int64_t n = to - from;
  const std::int64_t d = tile.dim;
  for (std::int64_t i = 0; i < n; ++i) {
    decode(span.rows.keys, from + i - span.first, &s.keys[i * d]);
    decode(span.rows.values, from + i - span.first, &s.values[i * d]);
  }
  matrix_product(Transposed::yes, m, n, d, s.queries.data(), d, s.keys.data(), d, 0,
                 s.scores.data(), key_tile);
  for (std::int64_t row = 0; row < m; ++row) {
    float* scores = &s.scores[row * key_tile];
    const std::int64_t p = tile.position(row);
    if (tile.softcap > 0) soft_cap(scores, n, tile.softcap);
    const auto hide = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t x = std::max(begin, from); x < std::min(end, to); ++x) {
        scores[x - from] = empty_lse;
      }
    };
    hide(tile.visible.sinks, tile.visible.begin(p));
    hide(p + 1, to);
    const float high = std::max(s.high[row], max_of(scores, n));
    if (high == empty_lse) {  // nothing visible yet
      std::fill(scores, scores + n, 0.0F);
      continue;
    }
    if (high > s.high[row]) {
      const float shrink = std::exp(s.high[row] - high);
      scale_by(&s.out[row * d], d, shrink);
      s.sum[row] *= shrink;
      s.high[row] = high;
    }
    s.sum[row] += exp_shifted(scores, n, high);
  }
  matrix_product(Transposed::no, m, d, n, s.scores.data(), key_tile, s.values.data(), d, 1,
                 s.out.data(), d);
}

/// The tile's partial over keys [begin, end) of the span; out_row(row) gives where a query's
/// output and lse go.
template <class OutRow>
void attend_tile(const Tile& tile, const RowSpan& span, PositionRange keys, OutRow out_row) {
  thread_local Scratch s;
  const std::int64_t m = tile.count();
  const std::int64_t d = tile.dim;
  s.resize(m, d);
  for (std::int64_t row = 0; row < m; ++row) {
    const float* q =
        tile.queries.query(tile.begin + row / tile.group, tile.head + row % tile.group);
    std::copy(q, q + d, &s.queries[row * d]);
  }
  scale_by(s.queries.data(), m * d, tile.scale);
  std::fill_n(s.out.begin(), m * d, 0.0F);
  std::fill_n(s.high.begin(), m, empty_lse);
  std::fill_n(s.sum.begin(), m, 0.0F);

  // Keys that some query of the tile may see: the sinks, and from the first query's window on.
  const std::int64_t last = std::min(keys.end, tile.position(m - 1) + 1);
  const std::int64_t window = tile.visible.begin(tile.position(0));
  const std::int64_t sinks = std::min(tile.visible.sinks, window);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = std::max(begin, keys.begin); at < std::min(end, last); at += key_tile) {
      check_stop();
      add_key_tile(tile, span, at, std::min({at + key_tile, end, last}), s);
    }
  };
  run(0, sinks);
  run(std::max(window, sinks), last);

  for (std::int64_t row = 0; row < m; ++row) {
    const auto [out, lse] = out_row(row);
    const float sum = s.sum[row];
    *lse = sum > 0 ? s.high[row] + std::log(sum) : empty_lse;
    std::copy_n(&s.out[row * d], d, out);
    if (sum > 0) scale_by(out, d, 1.0F / sum);
  }
}

}  // namespace

void attend_tokens(const AttentionShape& shape, const TokenQueries& queries,
                   const CausalWindow& visible, std::span<const RowSpan> spans, PartialView out) {
  const std::int64_t kv_heads = std::ssize(spans);
  const std::int64_t group = queries.heads / kv_heads;
  const std::int64_t d = queries.head_dim;
  const std::int64_t tile_tokens = std::max<std::int64_t>(1, query_tile / group);
  const std::int64_t tiles = (queries.tokens + tile_tokens - 1) / tile_tokens;
  const std::int64_t rows = spans[0].rows.count();
  const std::int64_t splits =
      visible.window == 0 ? std::max<std::int64_t>(1, (rows + rows_per_task - 1) / rows_per_task)
                          : 1;

  const auto tile_of = [&](std::int64_t head, std::int64_t index) {
    return Tile{queries,
                visible,
                index * tile_tokens,
                std::min((index + 1) * tile_tokens, queries.tokens),
                head * group,
                group,
                d,
                shape.softmax_scale(),
                shape.softcap};
  };
  const auto place = [&](const Tile& tile, std::int64_t row) {
    return (tile.begin + row / group) * queries.heads + tile.head + row % group;
  };

  parallel_for(kv_heads * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Tile tile = tile_of(i / tiles, i % tiles);
      const RowSpan& span = spans[i / tiles];
      if (splits == 1) {
        attend_tile(tile, span, {span.first, span.end()}, [&](std::int64_t row) {
          const std::int64_t at = place(tile, row);
          return std::pair(out.out + at * d, out.lse + at);
        });
        continue;
      }
      // Dense attention over many rows: partials over pieces, merged in order.
      const std::int64_t m = tile.count();
      std::vector<Partial> pieces(static_cast<std::size_t>(splits));
      parallel_for(splits, 1, [&](std::int64_t first, std::int64_t stop) {
        for (std::int64_t piece = first; piece < stop; ++piece) {
          pieces[piece].reset(m, d);
          const PartialView view = pieces[piece].view();
          const std::int64_t from = span.first + piece * rows_per_task;
          attend_tile(
              tile, span, {from, std::min(from + rows_per_task, span.end())},
              [&](std::int64_t row) { return std::pair(view.out + row * d, view.lse + row); });
        }
      });
      for (std::int64_t piece = 1; piece < splits; ++piece)
        merge(pieces[0].view(), pieces[piece].view());
      for (std::int64_t row = 0; row < m; ++row) {
        const std::int64_t at = place(tile, row);
        std::copy_n(pieces[0].out().data() + row * d, d, out.out + at * d);
        out.lse[at] = pieces[0].lse()[static_cast<std::size_t>(row)];
      }
    }
  });
}

}  // namespace topkv
