#include "src/attention/block_attention.h"

#include <algorithm>
#include <vector>

#include "src/attention/query_tile.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t rows_per_task = 1 << 16;  // keys before a tile is split over tasks

/// The tile's partial over keys [begin, end) of the span; out_row(row) gives where a query's
/// output and lse go.
template <class OutRow>
void attend_tile(const QueryTile& tile, const RowSpan& span, PositionRange keys, OutRow out_row) {
  thread_local TileScratch s;
  begin_tile(tile, s);

  // Keys that some query of the tile may see: the sinks, and from the first query's window on.
  const std::int64_t last = std::min(keys.end, tile.position(tile.count() - 1) + 1);
  const std::int64_t window = tile.visible.begin(tile.position(0));
  const std::int64_t sinks = std::min(tile.visible.sinks, window);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = std::max(begin, keys.begin); at < std::min(end, last); at += key_tile) {
      check_stop();
      const PositionRange part{at, std::min({at + key_tile, end, last})};
      add_keys(tile, span, {&part, 1}, s);
    }
  };
  run(0, sinks);
  run(std::max(window, sinks), last);
  end_tile(tile, s, out_row);
}

/// The partial of `heads` heads over positions: partials over pieces of them, which
/// attend(piece, view) makes, merged in order.
template <class Attend>
Partial attend_in_pieces(PositionRange positions, std::int64_t heads, std::int64_t head_dim,
                         const Attend& attend) {
  const std::int64_t count = (positions.size() + rows_per_task - 1) / rows_per_task;
  std::vector<Partial> pieces(static_cast<std::size_t>(count));
  parallel_for(count, 1, [&](std::int64_t first, std::int64_t stop) {
    for (std::int64_t i = first; i < stop; ++i) {
      Partial& piece = pieces[static_cast<std::size_t>(i)];
      piece.reset(heads, head_dim);
      const std::int64_t from = positions.begin + i * rows_per_task;
      attend(PositionRange{from, std::min(from + rows_per_task, positions.end)}, piece.view());
    }
  });
  for (std::size_t i = 1; i < pieces.size(); ++i) merge(pieces[0].view(), pieces[i].view());
  return std::move(pieces[0]);
}

/// The partial of one token's heads of a group over the positions [begin, end) of a span that the
/// token sees. It is the same whatever other tokens there are.
void attend_token(const AttentionShape& shape, const TokenQueries& queries,
                  const CausalWindow& visible, std::int64_t token, std::int64_t head,
                  const RowSpan& span, PositionRange positions, PartialView out) {
  thread_local std::vector<std::int64_t> rows;
  thread_local Partial behind;
  const std::int64_t p = queries.first + token;
  const std::int64_t end = std::min(positions.end, p + 1);
  const std::int64_t window = visible.begin(p);
  const std::int64_t border = span.first + span.rows.count();
  const auto attend = [&](const RowsView& view, PositionRange of_view, PartialView to) {
    rows.clear();
    const auto add = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t x = std::max(first, of_view.begin); x < std::min(last, of_view.end); ++x)
        rows.push_back(x - of_view.begin);
    };
    add(positions.begin, std::min({visible.sinks, window, end}));
    add(std::max(positions.begin, window), end);
    attend_rows(queries.query(token, head), view, rows, shape.softmax_scale(), to, shape.softcap);
  };
  if (span.rows.count() > 0) {
    attend(span.rows, {span.first, border}, out);
  } else {
    std::fill_n(out.out, out.heads * out.head_dim, 0.0F);
    std::fill_n(out.lse, out.heads, empty_lse);
  }
  if (span.more.count() == 0) return;
  behind.reset(out.heads, out.head_dim);
  attend(span.more, {border, span.end()}, behind.view());
  merge(out, behind.view());
}

}  // namespace

RowSpan RowSpan::part(PositionRange positions) const {
  const std::int64_t border = first + rows.count();
  const auto of = [&](const RowsView& view, std::int64_t begin) {
    const PositionRange range = positions.within({begin, begin + view.count()});
    return range.size() > 0 ? view.part({range.begin - begin, range.end - begin}) : RowsView{};
  };
  return {of(rows, first), positions.begin, of(more, border)};
}

void attend_tokens(const AttentionShape& shape, const TokenQueries& queries,
                   const CausalWindow& visible, std::span<const RowSpan> spans, PartialView out) {
  const std::int64_t kv_heads = std::ssize(spans);
  const std::int64_t group = queries.heads / kv_heads;
  const std::int64_t d = queries.head_dim;
  const std::int64_t tile_tokens = std::max<std::int64_t>(1, query_tile / group);
  const std::int64_t tiles = (queries.tokens + tile_tokens - 1) / tile_tokens;
  const std::int64_t rows = spans[0].count();
  const std::int64_t splits =
      visible.window == 0 ? std::max<std::int64_t>(1, (rows + rows_per_task - 1) / rows_per_task)
                          : 1;

  const auto tile_of = [&](std::int64_t head, std::int64_t index) {
    return QueryTile{queries,
                     visible,
                     index * tile_tokens,
                     std::min((index + 1) * tile_tokens, queries.tokens),
                     head * group,
                     group,
                     d,
                     shape.softmax_scale(),
                     shape.softcap};
  };
  const auto place = [&](const QueryTile& tile, std::int64_t row) {
    return (tile.begin + row / group) * queries.heads + tile.head + row % group;
  };

  parallel_for(kv_heads * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const QueryTile tile = tile_of(i / tiles, i % tiles);
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
      const Partial whole = attend_in_pieces(
          {span.first, span.end()}, m, d, [&](const PositionRange& piece, PartialView view) {
            attend_tile(tile, span, piece, [&](std::int64_t row) {
              return std::pair(view.out + row * d, view.lse + row);
            });
          });
      for (std::int64_t row = 0; row < m; ++row) {
        const std::int64_t at = place(tile, row);
        std::copy_n(whole.out().data() + row * d, d, out.out + at * d);
        out.lse[at] = whole.lse()[static_cast<std::size_t>(row)];
      }
    }
  });
}

void attend_few_tokens(const AttentionShape& shape, const TokenQueries& queries,
                       const CausalWindow& visible, std::span<const RowSpan> spans,
                       PartialView out) {
  const std::int64_t group = queries.heads / std::ssize(spans);
  const std::int64_t tasks = std::ssize(spans) * queries.tokens;
  parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      check_stop();
      const std::int64_t kv_head = task / queries.tokens;
      const std::int64_t token = task % queries.tokens;
      const std::int64_t head = kv_head * group;
      const RowSpan& span = spans[static_cast<std::size_t>(kv_head)];
      const PartialView part = out.part(token * queries.heads + head, group);
      const std::int64_t last = std::min(span.end(), queries.first + token + 1);
      const std::int64_t splits =
          visible.window == 0 ? (last - span.first + rows_per_task - 1) / rows_per_task : 1;
      if (splits <= 1) {
        attend_token(shape, queries, visible, token, head, span, {span.first, span.end()}, part);
        continue;
      }
      const Partial whole =
          attend_in_pieces({span.first, last}, group, queries.head_dim,
                           [&](const PositionRange& piece, PartialView view) {
                             check_stop();
                             attend_token(shape, queries, visible, token, head, span, piece, view);
                           });
      std::ranges::copy(whole.out(), part.out);
      std::ranges::copy(whole.lse(), part.lse);
    }
  });
}

}  // namespace topkv
