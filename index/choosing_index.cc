#include "index/choosing_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "index/scan.h"
#include "index/scratch.h"
#include "src/core/dot.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Of one token.
struct Workspace {
  std::vector<std::vector<std::int64_t>> found;  // per head
  std::vector<float> scores;
  std::vector<Scored> ranked;
};

}  // namespace

void score_all(const float* queries, std::int64_t heads, const KeyView& keys,
               std::int64_t at_a_time, float* out) {
  parallel_for(keys.count, at_a_time, [&](std::int64_t begin, std::int64_t end) {
    dot_block(queries, heads, keys.part({begin, end}), out + begin, keys.count);
  });
}

void ChoosingIndex::search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const {
  key_list().check_search(spec(), built(), queries, k);
  check_groups(spec(), queries);
  const std::int64_t group = queries.group;
  k = std::min(k, std::max<std::int64_t>(size(), 1));
  result.reset(queries.count, k);
  if (size() == 0) return;
  parallel_for(queries.count / group, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      search_token(queries, token * group, k, result);
  });
}

void ChoosingIndex::search_token(const QueryBlock& queries, std::int64_t first, std::int64_t k,
                                 SearchResult& result) const {
  const PositionRange allowed = key_list().clamp(queries.allowed[static_cast<std::size_t>(first)]);
  if (allowed.size() <= 0) return;
  const Scratch<Workspace> workspace;
  auto& [found, scores, ranked] = *workspace;
  if (std::ssize(found) < queries.group) found.resize(static_cast<std::size_t>(queries.group));
  const auto lists = std::span(found).first(static_cast<std::size_t>(queries.group));
  const TokenHeads token{queries.query(first), queries.group, queries.dim, queries.score_scale()};
  // Once, but where a chosen key's score is beyond float32: then more are chosen, to have k.
  bool enough = false;
  for (std::int64_t want = k; !enough; want *= 2) {
    for (auto& list : lists) list.clear();
    const bool all = allowed.size() <= want && !chooses_fewer();
    if (!all) choose(token, allowed, want, lists);
    enough = true;
    for (std::int64_t h = 0; h < queries.group; ++h) {
      std::vector<std::int64_t>& list = lists[static_cast<std::size_t>(h)];
      if (all) {
        list.resize(static_cast<std::size_t>(allowed.size()));
        std::iota(list.begin(), list.end(), allowed.begin);
      }
      scores.resize(list.size());
      dot_gather(token.query(h), 1, keys(), list.data(), std::ssize(list), scores.data(),
                 std::ssize(list));
      ranked.clear();
      for (std::size_t i = 0; i < list.size() && std::ssize(ranked) < k; ++i) {
        if (!std::isnan(scores[i])) ranked.push_back({scores[i], list[i]});
      }
      std::sort(ranked.begin(), ranked.end(), ranks_before);
      write_result(ranked, first + h, result);
      enough = enough && (all || std::ssize(ranked) == k || std::ssize(list) < want);
    }
  }
}

}  // namespace topkv
