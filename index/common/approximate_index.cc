#include "index/common/approximate_index.h"

#include <algorithm>

#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t tile_keys = 512;

/// Of a search.
struct Workspace {
  std::vector<PositionRange> allowed;  // per query, within the keys
  std::vector<PositionRange> sought;   // those of them that candidates are sought in
  std::vector<std::vector<std::int64_t>> found;
};

/// Of a group's queries.
struct Rare {
  std::vector<float> scores;  // [queries, rare keys that are allowed]
};

/// Of one query.
struct Ranked {
  TopKStream keeper;
  std::vector<float> proposed;  // scores
  std::vector<std::int64_t> candidates;
  std::vector<float> scores;
};

void scan_range(const KeyView& keys, const float* query, PositionRange range, TopKStream& keeper) {
  float scores[tile_keys];
  for (std::int64_t begin = range.begin; begin < range.end; begin += tile_keys) {
    const std::int64_t count = std::min(tile_keys, range.end - begin);
    dot_block(query, 1, keys.part({begin, begin + count}), scores, tile_keys);
    keeper.push(scores, count, begin);
  }
}

/// Somewhat more than k from the start: a lossy code misorders candidates, and a few keys that
/// every query likes (attention sinks) are often those that are not allowed.
std::int64_t first_wanted(std::int64_t k) { return k + k / 4 + 16; }

/// Whether reading a whole range costs no more than looking for `want` of its keys among all keys.
/// A candidate costs tens of random reads; reading in order is several times cheaper per key.
bool scan_is_cheaper(PositionRange range, std::int64_t want) {
  return range.size() <= std::max<std::int64_t>(1024, 8 * want);
}

}  // namespace

void ApproximateIndex::insert(std::int64_t first, const std::stop_token& stop) {
  std::vector<float> residuals;
  insert_judged(first, residuals, stop);
  if (std::ssize(residuals) == size()) {
    rare_.learn(residuals);
  } else {
    rare_.add(first, residuals);
  }
}

void ApproximateIndex::clear() {
  clear_structure();
  rare_.clear();
}

void ApproximateIndex::fields(Archive& archive) {
  structure_fields(archive);
  rare_.fields(size(), archive);
}

void ApproximateIndex::all_candidates(const QueryBlock& queries, std::int64_t want,
                                      std::span<std::vector<std::int64_t>> found) const {
  parallel_for(queries.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t q = begin; q < end; ++q) {
      const auto at = static_cast<std::size_t>(q);
      if (queries.allowed[at].size() > 0)
        candidates(queries.query(q), queries.allowed[at], want, found[at]);
    }
  });
}

void ApproximateIndex::search(const QueryBlock& queries, std::int64_t k,
                              SearchResult& result) const {
  key_list().check_search("index", built(), queries, k);
  check_groups(spec(), queries);
  k = std::min(k, std::max<std::int64_t>(size(), 1));
  result.reset(queries.count, k);
  if (size() == 0) return;
  const std::int64_t want = first_wanted(k);
  const Scratch<Workspace> workspace;
  auto& allowed = workspace->allowed;
  auto& sought = workspace->sought;
  auto& found = workspace->found;
  const auto count = static_cast<std::size_t>(queries.count);
  if (found.size() < count) found.resize(count);
  allowed.clear();
  sought.clear();
  bool any = false;
  for (const PositionRange& range : queries.allowed) {
    allowed.push_back(key_list().clamp(range));
    sought.push_back(scan_is_cheaper(allowed.back(), want) ? PositionRange{} : allowed.back());
    any = any || sought.back().size() > 0;
  }
  if (any) {
    all_candidates({queries.data, queries.count, queries.dim, sought, queries.group}, want,
                   std::span(found).first(count));
  }
  const QueryBlock clamped{queries.data, queries.count, queries.dim, allowed, queries.group};
  parallel_for(queries.count / queries.group, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group)
      search_group(clamped, group * queries.group, k, found, result);
  });
}

/// Of `queries.group` queries from this one on. The rare keys are read once for all of them.
void ApproximateIndex::search_group(const QueryBlock& queries, std::int64_t first, std::int64_t k,
                                    std::span<std::vector<std::int64_t>> found,
                                    SearchResult& result) const {
  const PositionRange allowed = queries.allowed[static_cast<std::size_t>(first)];
  if (allowed.size() == 0) return;
  const std::span<const std::int64_t> rare = rare_.positions(allowed);
  const std::int64_t count = std::ssize(rare);
  const Scratch<Rare> workspace;
  std::vector<float>& scores = workspace->scores;
  scores.resize(static_cast<std::size_t>(queries.group * count));
  parallel_for(count, tile_keys, [&](std::int64_t begin, std::int64_t end) {
    dot_gather(queries.query(first), queries.group, keys(), rare.data() + begin, end - begin,
               scores.data() + begin, count);
  });
  parallel_for(queries.group, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t q = begin; q < end; ++q) {
      search_one(queries, first + q, k, {rare, scores.data() + q * count},
                 found[static_cast<std::size_t>(first + q)], result);
    }
  });
}

/// found: the candidates of a first round, if its range is not read anyway.
void ApproximateIndex::search_one(const QueryBlock& queries, std::int64_t query, std::int64_t k,
                                  const ScoredRare& rare, std::vector<std::int64_t>& found,
                                  SearchResult& result) const {
  const KeyView& keys = this->keys();
  const PositionRange allowed = queries.allowed[static_cast<std::size_t>(query)];
  const float* q = queries.query(query);
  const Scratch<Ranked> ranked;
  auto& [keeper, proposed, both, scores] = *ranked;
  keeper.reset(k);
  const std::int64_t enough = std::min(k, allowed.size());
  const std::int64_t first = first_wanted(k);
  for (std::int64_t want = first;; want *= 2) {
    if (scan_is_cheaper(allowed, want)) {
      scan_range(keys, q, allowed, keeper);
      break;
    }
    if (want > first) candidates(q, allowed, want, found);
    std::erase_if(found, [&](std::int64_t position) {
      return !allowed.contains(position) || std::ranges::binary_search(rare.positions, position);
    });
    if (!std::ranges::is_sorted(found)) std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    const auto count = std::ssize(found) + std::ssize(rare.positions);
    if (count < enough) continue;
    proposed.resize(found.size());
    dot_gather(q, 1, keys, found.data(), std::ssize(found), proposed.data(), std::ssize(found));
    both.clear();
    scores.clear();
    for (std::size_t f = 0, r = 0; f < found.size() || r < rare.positions.size();) {
      const bool is_rare =
          f == found.size() || (r < rare.positions.size() && rare.positions[r] < found[f]);
      both.push_back(is_rare ? rare.positions[r] : found[f]);
      scores.push_back(is_rare ? rare.scores[r++] : proposed[f++]);
    }
    // By place among both, which ascend: of equal scores the lower position is kept.
    keeper.push(scores.data(), count, 0);
    write_result(keeper.sorted(), query, result);
    for (std::int64_t& position :
         result.position_slots(query).first(result.positions(query).size())) {
      position = both[static_cast<std::size_t>(position)];
    }
    return;
  }
  write_result(keeper.sorted(), query, result);
}

}  // namespace topkv
