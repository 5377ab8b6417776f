#include "index/exact_index.h"

#include <algorithm>
#include <atomic>

#include "index/scan.h"
#include "index/scratch.h"
#include "src/core/dot.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// How the work is cut. None of it depends on the number of threads.
constexpr std::int64_t block_keys = 16384;   // what a thread takes at a time
constexpr std::int64_t tile_keys = 512;      // scores of a tile stay in the first-level cache
constexpr std::int64_t group_queries = 256;  // queries of one pass over the keys

/// What one worker needs for one pass.
struct Worker {
  bool used = false;
  std::vector<ScanKeeper> keepers;  // one per query of the group
  std::vector<float> scores;        // [queries, tile_keys]

  void begin(std::int64_t queries, std::int64_t k) {
    used = true;
    const auto count = static_cast<std::size_t>(queries);
    if (keepers.size() < count) keepers.resize(count);
    for (std::size_t i = 0; i < count; ++i) keepers[i].reset(k);
    const auto size = static_cast<std::size_t>(queries * tile_keys);
    if (scores.size() < size) scores.resize(size);
  }
};

struct Workspace {
  std::vector<PositionRange> allowed;  // clamped to the keys
  std::vector<Worker> workers;
};

void scan_block(const QueryBlock& queries, std::span<const PositionRange> allowed,
                const KeyView& keys, PositionRange block, Worker& worker) {
  for (std::int64_t begin = block.begin; begin < block.end; begin += tile_keys) {
    const PositionRange tile{begin, std::min(begin + tile_keys, block.end)};
    dot_block(queries.data, queries.count, keys.dim, keys.key(tile.begin), keys.dtype,
              keys.stride_bytes, tile.size(), worker.scores.data(), tile_keys);
    for (std::int64_t q = 0; q < queries.count; ++q) {
      const auto i = static_cast<std::size_t>(q);
      const std::int64_t from = std::max(tile.begin, allowed[i].begin);
      const std::int64_t to = std::min(tile.end, allowed[i].end);
      if (from >= to) continue;
      worker.keepers[i].push(worker.scores.data() + q * tile_keys + (from - tile.begin), to - from,
                             from);
    }
  }
}

/// One pass over the keys for a group of queries, whose results begin at first_query.
void search_group(const QueryBlock& queries, const KeyList& list, std::int64_t k,
                  Workspace& workspace, std::int64_t first_query, SearchResult& result) {
  const KeyView& keys = list.view();
  auto& allowed = workspace.allowed;
  allowed.clear();
  PositionRange all{keys.count, 0};
  for (const PositionRange& range : queries.allowed) {
    allowed.push_back(list.clamp(range));
    if (allowed.back().size() == 0) continue;
    all.begin = std::min(all.begin, allowed.back().begin);
    all.end = std::max(all.end, allowed.back().end);
  }
  if (all.size() == 0) return;

  const std::int64_t first_block = all.begin / block_keys;
  const std::int64_t end_block = (all.end + block_keys - 1) / block_keys;
  const std::int64_t worker_count = std::min(thread_count(), end_block - first_block);
  auto& workers = workspace.workers;
  if (static_cast<std::int64_t>(workers.size()) < worker_count) {
    workers.resize(static_cast<std::size_t>(worker_count));
  }
  for (Worker& worker : workers) worker.used = false;

  // Workers take blocks in turn: a worker that starts late, or not at all, holds nobody up.
  std::atomic<std::int64_t> next_block{first_block};
  parallel_for(worker_count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = begin; w < end; ++w) {
      Worker& worker = workers[static_cast<std::size_t>(w)];
      for (;;) {
        const std::int64_t block = next_block.fetch_add(1, std::memory_order_relaxed);
        if (block >= end_block) break;
        if (!worker.used) worker.begin(queries.count, k);
        scan_block(
            queries, allowed, keys,
            {std::max(block * block_keys, all.begin), std::min((block + 1) * block_keys, all.end)},
            worker);
      }
    }
  });

  // The order of scores and positions is total, so that merging in any order gives one result.
  for (std::int64_t q = 0; q < queries.count; ++q) {
    const auto i = static_cast<std::size_t>(q);
    ScanKeeper* merged = nullptr;
    for (Worker& worker : workers) {
      if (!worker.used) continue;
      if (merged == nullptr) {
        merged = &worker.keepers[i];
      } else {
        merged->merge(worker.keepers[i]);
      }
    }
    write_result(merged->sorted(), first_query + q, result);
  }
}

}  // namespace

void ExactIndex::build() {
  if (built_) throw InvalidArgument("exact: build called twice; add alone makes keys searchable");
  built_ = true;
}

void ExactIndex::search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const {
  keys_.check_search("exact", built_, queries, k);
  k = std::min(k, std::max<std::int64_t>(keys_.size(), 1));
  result.reset(queries.count, k);
  if (keys_.size() == 0) return;
  const Scratch<Workspace> workspace;
  for (std::int64_t first = 0; first < queries.count; first += group_queries) {
    const std::int64_t count = std::min(group_queries, queries.count - first);
    const QueryBlock group{
        queries.query(first), count, queries.dim,
        queries.allowed.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))};
    search_group(group, keys_, k, *workspace, first, result);
  }
}

}  // namespace topkv
