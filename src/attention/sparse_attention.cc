#include "src/attention/sparse_attention.h"

#include <algorithm>
#include <utility>

#include "src/attention/query_tile.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "topkv/attention.h"

namespace topkv {
namespace {

/// The tokens of one block of queries, by number: a piece of the tokens of a call.
struct Piece {
  std::int64_t begin, count;
};

/// first: the position of token number 0.
std::vector<Piece> pieces_of(std::int64_t first, std::int64_t tokens) {
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0, count = 0; begin < tokens; begin += count) {
    count = std::min(tokens - begin, query_block - (first + begin) % query_block);
    pieces.push_back({begin, count});
  }
  return pieces;
}

/// Calls use(runs) for the positions of blocks that a pass meets, up to key_tile of them at a time.
template <class Use>
void each_key_tile(std::span<const std::int64_t> blocks, const PositionRange& sees,
                   std::int64_t end, const Use& use) {
  std::vector<PositionRange> runs;
  std::int64_t held = 0;
  for (const std::int64_t block : blocks) {
    const PositionRange keys =
        sees.within({block * key_block, std::min((block + 1) * key_block, end)});
    if (keys.size() == 0) continue;
    if (held + keys.size() > key_tile) {
      use(std::span<const PositionRange>(runs));
      runs.clear();
      held = 0;
    }
    if (!runs.empty() && runs.back().end == keys.begin) {
      runs.back().end = keys.end;
    } else {
      runs.push_back(keys);
    }
    held += keys.size();
  }
  if (held > 0) use(std::span<const PositionRange>(runs));
}

/// What a piece met, summed over its tokens.
PrefillShare share_of(const ChosenBlocks& chosen, std::int64_t first, std::int64_t tokens) {
  PrefillShare share;
  share.queries = tokens;
  share.mass = chosen.mass * static_cast<double>(tokens);
  for (std::int64_t p = first; p < first + tokens; ++p) {
    share.dense_keys += static_cast<double>(p + 1);
    for (auto block = chosen.blocks.rbegin(); block != chosen.blocks.rend(); ++block) {
      if ((*block + 1) * key_block <= p + 1) {  // whole, as are all before it
        share.keys += static_cast<double>((chosen.blocks.rend() - block) * key_block);
        break;
      }
      share.keys += static_cast<double>(std::max<std::int64_t>(0, p + 1 - *block * key_block));
    }
  }
  return share;
}

}  // namespace

PrefillShare attend_sparse(const AttentionShape& shape, std::span<const PassQueries> passes,
                           const CausalWindow& always, const BlockBudget& budget,
                           std::span<const RowSpan> rows, std::span<const std::vector<float>> means,
                           PartialView out) {
  const TokenQueries& all = passes[0].queries;
  const std::int64_t kv_heads = std::ssize(rows);
  const std::int64_t group = all.heads / kv_heads;
  const std::int64_t d = all.head_dim;
  const std::vector<Piece> pieces = pieces_of(all.first, all.tokens);
  const auto parts_of = [&](const Piece& piece) {
    std::vector<PassQueries> parts;
    for (const PassQueries& pass : passes)
      parts.push_back({pass.queries.part(piece.begin, piece.count), pass.sees});
    return parts;
  };

  // All choose before one attends: out may be the queries.
  std::vector<ChosenBlocks> chosen(pieces.size() * static_cast<std::size_t>(kv_heads));
  parallel_for(std::ssize(chosen), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      check_stop();
      const std::vector<PassQueries> parts =
          parts_of(pieces[static_cast<std::size_t>(i / kv_heads)]);
      const auto head = static_cast<std::size_t>(i % kv_heads);
      const BlockQueries queries{parts, i % kv_heads * group, group, shape.softmax_scale(),
                                 shape.softcap};
      const ForcedBlocks forced(queries.first(), always.window, always.sinks);
      chosen[static_cast<std::size_t>(i)] =
          choose_blocks(queries, forced, budget, rows[head], means[head]);
    }
  });

  struct Task {
    std::size_t piece;
    std::int64_t begin, end;  // tokens of the piece
  };
  std::vector<Task> tasks;
  const std::int64_t tile_tokens = std::max<std::int64_t>(1, query_tile / group);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::int64_t begin = 0; begin < pieces[i].count; begin += tile_tokens)
      tasks.push_back({i, begin, std::min(begin + tile_tokens, pieces[i].count)});
  }
  constexpr CausalWindow causal{};
  parallel_for(std::ssize(tasks) * kv_heads, 1, [&](std::int64_t from, std::int64_t to) {
    thread_local TileScratch s;
    thread_local Partial part;
    for (std::int64_t i = from; i < to; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i / kv_heads)];
      const std::int64_t kv_head = i % kv_heads;
      const std::vector<PassQueries> parts = parts_of(pieces[task.piece]);
      const RowSpan& span = rows[static_cast<std::size_t>(kv_head)];
      const std::vector<std::int64_t>& blocks =
          chosen[task.piece * static_cast<std::size_t>(kv_heads) +
                 static_cast<std::size_t>(kv_head)]
              .blocks;
      const auto place = [&](std::int64_t row) {
        return (pieces[task.piece].begin + task.begin + row / group) * all.heads + kv_head * group +
               row % group;
      };
      for (const PassQueries& pass : parts) {
        const QueryTile tile{pass.queries,    causal, task.begin, task.end,
                             kv_head * group, group,  d,          shape.softmax_scale(),
                             shape.softcap};
        begin_tile(tile, s);
        each_key_tile(blocks, pass.sees, tile.position(tile.count() - 1) + 1,
                      [&](std::span<const PositionRange> runs) {
                        check_stop();
                        add_keys(tile, span, runs, s);
                      });
        if (&pass == parts.data()) {
          end_tile(tile, s, [&](std::int64_t row) {
            return std::pair(out.out + place(row) * d, out.lse + place(row));
          });
          continue;
        }
        part.reset(tile.count(), d);
        const PartialView view = part.view();
        end_tile(tile, s,
                 [&](std::int64_t row) { return std::pair(view.out + row * d, view.lse + row); });
        for (std::int64_t row = 0; row < tile.count(); ++row)
          merge(out.part(place(row)), view.part(row));
      }
    }
  });

  PrefillShare share;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Piece& piece = pieces[i / static_cast<std::size_t>(kv_heads)];
    share += share_of(chosen[i], all.first + piece.begin, piece.count);
  }
  return share;
}

}  // namespace topkv
