#include "index/exact/exact_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "index/common/index_factory.h"
#include "index/common/ranking.h"
#include "index/common/sample.h"
#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "src/core/format/archive.h"
#include "src/core/math/dot.h"
#include "src/core/math/tile_dot.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// How the work is cut. None of it depends on the number of threads.
constexpr std::int64_t block_keys = 4096;    // what a thread takes at a time
constexpr std::int64_t tile_keys = 512;      // scores of a tile stay in the first-level cache
constexpr std::int64_t group_queries = 256;  // queries of one pass over the keys
constexpr std::int64_t finish_keys = 512;    // results that a thread sorts at a time, at least

/// What one worker needs for one pass.
struct Worker {
  bool used = false;
  std::vector<TopKStream> keepers;  // one per query of the group
  std::vector<float> scores;        // [queries, tile_keys]
};

/// What is known of one query before a pass.
struct Wanted {
  PositionRange allowed;           // clamped to the keys
  PositionRange sampled;           // the sampled keys within it
  std::int64_t sample_rank = 0;    // of the threshold among them; 0: none
  float threshold = no_threshold;  // the k best are looked for above it
};

struct ExactWorkspace {
  TileQueries tiles;  // of the group's queries, when the machine scores with matrix tiles
  std::vector<Wanted> wanted;
  std::vector<Worker> workers;
  std::vector<std::vector<Scored>> candidates;  // one per query of the group
};

/// Deals the blocks first to end - 1 out to workers in turn, so that one who starts late, or not
/// at all, holds nobody up. reset(q, keeper) readies a worker's keeper before its first block.
template <class Reset, class Scan>
void deal_out(PositionRange blocks, std::int64_t queries, std::vector<Worker>& workers,
              const Reset& reset, const Scan& scan) {
  const std::int64_t count = std::min(thread_count(), blocks.size());
  if (static_cast<std::int64_t>(workers.size()) < count) {
    workers.resize(static_cast<std::size_t>(count));
  }
  for (Worker& worker : workers) worker.used = false;
  std::atomic<std::int64_t> next{blocks.begin};
  parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = begin; w < end; ++w) {
      Worker& worker = workers[static_cast<std::size_t>(w)];
      for (;;) {
        const std::int64_t block = next.fetch_add(1, std::memory_order_relaxed);
        if (block >= blocks.end) break;
        if (!worker.used) {
          worker.used = true;
          const auto size = static_cast<std::size_t>(queries);
          if (worker.keepers.size() < size) worker.keepers.resize(size);
          for (std::size_t q = 0; q < size; ++q) reset(q, worker.keepers[q]);
          if (worker.scores.size() < size * tile_keys) worker.scores.resize(size * tile_keys);
        }
        check_stop();
        scan(block, worker);
      }
    }
  });
}

/// Hands a tile's scores to the keepers; of each query's only those within its range.
template <class RangeOf>
void keep_tile(PositionRange tile, std::int64_t queries, const RangeOf& range_of, Worker& worker) {
  for (std::int64_t q = 0; q < queries; ++q) {
    const auto i = static_cast<std::size_t>(q);
    const PositionRange range = range_of(i);
    const std::int64_t from = std::max(tile.begin, range.begin);
    const std::int64_t to = std::min(tile.end, range.end);
    if (from >= to) continue;
    worker.keepers[i].push(worker.scores.data() + q * tile_keys + (from - tile.begin), to - from,
                           from);
  }
}

/// What all workers hold of one query, to be found in the workspace afterwards.
std::vector<Scored>& gather(std::size_t query, ExactWorkspace& workspace) {
  std::vector<Scored>& all = workspace.candidates[query];
  all.clear();
  for (const Worker& worker : workspace.workers) {
    if (!worker.used) continue;
    const auto held = worker.keepers[query].held();
    all.insert(all.end(), held.begin(), held.end());
  }
  return all;
}

/// Sets the thresholds of the queries for which a sample can tell one.
void set_thresholds(const QueryBlock& queries, const KeyView& keys, std::int64_t k,
                    ExactWorkspace& workspace) {
  auto& wanted = workspace.wanted;
  PositionRange all{keys.count, 0};
  for (Wanted& query : wanted) {
    query.sampled = sample::within(query.allowed);
    query.sample_rank = sample::rank_for(k, query.sampled.size());
    if (query.sample_rank == 0) query.sampled = {0, 0};
    if (query.sampled.size() == 0) continue;
    all.begin = std::min(all.begin, query.sampled.begin);
    all.end = std::max(all.end, query.sampled.end);
  }
  if (all.size() <= 0) return;
  deal_out(
      {all.begin / tile_keys, (all.end + tile_keys - 1) / tile_keys}, queries.count,
      workspace.workers,
      [&](std::size_t q, TopKStream& keeper) {
        keeper.reset(std::max<std::int64_t>(wanted[q].sample_rank, 1));
      },
      [&](std::int64_t block, Worker& worker) {
        const PositionRange tile{std::max(block * tile_keys, all.begin),
                                 std::min((block + 1) * tile_keys, all.end)};
        std::int64_t positions[tile_keys];
        for (std::int64_t i = 0; i < tile.size(); ++i) {
          positions[i] = sample::position(tile.begin + i);
        }
        dot_gather(queries.data, queries.count, keys, positions, tile.size(), worker.scores.data(),
                   tile_keys);
        keep_tile(
            tile, queries.count, [&](std::size_t q) { return wanted[q].sampled; }, worker);
      });
  for (std::size_t q = 0; q < wanted.size(); ++q) {
    if (wanted[q].sample_rank == 0) continue;
    std::vector<Scored>& best = gather(q, workspace);
    const auto rank = static_cast<std::size_t>(wanted[q].sample_rank);
    if (best.size() < rank) continue;  // scores that are NaN
    const auto last = best.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
    std::nth_element(best.begin(), last, best.end(), ranks_before);
    // Just below it, so that scores equal to it are kept: there may be many of them.
    wanted[q].threshold = std::nextafter(last->score, no_threshold);
  }
}

/// One pass over the keys that some query may find.
void scan(const QueryBlock& queries, const KeyView& keys, PositionRange all, std::int64_t k,
          ExactWorkspace& workspace) {
  const auto& wanted = workspace.wanted;
  const bool tiles = TileQueries::usable(keys.dtype, keys.dim, queries.count);
  if (tiles) workspace.tiles.prepare(queries.data, queries.count, keys.dim);
  deal_out(
      {all.begin / block_keys, (all.end + block_keys - 1) / block_keys}, queries.count,
      workspace.workers,
      [&](std::size_t q, TopKStream& keeper) { keeper.reset(k, wanted[q].threshold); },
      [&](std::int64_t block, Worker& worker) {
        const std::int64_t end = std::min((block + 1) * block_keys, all.end);
        for (std::int64_t at = std::max(block * block_keys, all.begin); at < end; at += tile_keys) {
          const PositionRange tile{at, std::min(at + tile_keys, end)};
          if (tiles) {
            workspace.tiles.dot_block(keys.key(at), keys.stride_bytes, tile.size(),
                                      worker.scores.data(), tile_keys);
          } else {
            dot_block(queries.data, queries.count, keys.part(tile), worker.scores.data(),
                      tile_keys);
          }
          keep_tile(
              tile, queries.count, [&](std::size_t q) { return wanted[q].allowed; }, worker);
        }
      });
}

/// Clears the thresholds that fewer than k keys exceed, and tells whether there were any.
bool clear_thresholds_too_high(std::int64_t k, ExactWorkspace& workspace) {
  bool any = false;
  for (std::size_t q = 0; q < workspace.wanted.size(); ++q) {
    Wanted& query = workspace.wanted[q];
    if (query.threshold == no_threshold) continue;
    std::size_t found = 0;
    for (const Worker& worker : workspace.workers) {
      if (worker.used) found += worker.keepers[q].held().size();
    }
    if (found >= static_cast<std::size_t>(k)) continue;
    query.threshold = no_threshold;
    any = true;
  }
  return any;
}

/// Searches for a group of queries, whose results begin at first_query.
void search_group(const QueryBlock& queries, const InPlaceKeys& list, std::int64_t k,
                  ExactWorkspace& workspace, std::int64_t first_query, SearchResult& result) {
  const KeyView& keys = list.view();
  workspace.wanted.clear();
  PositionRange all{keys.count, 0};
  for (const PositionRange& range : queries.allowed) {
    const PositionRange allowed = list.clamp(range);
    workspace.wanted.emplace_back().allowed = allowed;
    if (allowed.size() == 0) continue;
    all.begin = std::min(all.begin, allowed.begin);
    all.end = std::max(all.end, allowed.end);
  }
  if (all.size() <= 0) return;
  const auto count = static_cast<std::size_t>(queries.count);
  if (workspace.candidates.size() < count) workspace.candidates.resize(count);

  set_thresholds(queries, keys, k, workspace);
  do {
    scan(queries, keys, all, k, workspace);
  } while (clear_thresholds_too_high(k, workspace));

  // The order of scores and positions is total: the k best are the same in whatever order they
  // come.
  parallel_for(queries.count, std::max<std::int64_t>(finish_keys / k, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 const Scratch<Ranking> ranking;
                 for (std::int64_t q = begin; q < end; ++q) {
                   const auto& found = gather(static_cast<std::size_t>(q), workspace);
                   write_result(ranking->best_first(found, k), first_query + q, result);
                 }
               });
}

}  // namespace

void ExactIndex::add(const KeyView& keys, const std::stop_token&) {
  keys_.append(keys);
  if (built_) inserted_ = keys_.size();
}

void ExactIndex::build(const std::stop_token&) {
  if (built_) throw InvalidArgument("exact: build called twice; add alone makes keys searchable");
  built_ = true;
  inserted_ = keys_.size();
}

void ExactIndex::search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const {
  keys_.check_search("exact", built_, queries, k);
  k = std::min(k, std::max<std::int64_t>(keys_.size(), 1));
  result.reset(queries.count, k);
  if (keys_.size() == 0) return;
  const Scratch<ExactWorkspace> workspace;
  for (std::int64_t first = 0; first < queries.count; first += group_queries) {
    const std::int64_t count = std::min(group_queries, queries.count - first);
    const QueryBlock group{
        queries.query(first), count, queries.dim,
        queries.allowed.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))};
    search_group(group, keys_, k, *workspace, first, result);
  }
}

void ExactIndex::transfer(const KeyView& keys, Archive& archive) {
  if (!archive.reading()) return;
  add(keys, {});
  build({});
}

std::shared_ptr<const IndexFactory> exact_factory() {
  class Exact final : public IndexFactory {
   public:
    Exact() : IndexFactory({.grows = true}) {}
    std::string text() const override { return "exact"; }
    std::unique_ptr<HeadIndex> make() const override { return std::make_unique<ExactIndex>(); }
  };
  return std::make_shared<Exact>();
}

}  // namespace topkv
