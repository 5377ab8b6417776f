#include "index/common/rule_based_index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "src/core/io/faults.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

/// Of one question.
struct ChoosingWorkspace {
  std::vector<PositionRange> allowed;            // per token
  std::vector<std::vector<std::int64_t>> found;  // per token and head
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

std::span<Scored> score_given(const float* query, const KeyView& key_summaries,
                              const CandidateEntries& given, std::int64_t head, GivenScores& room) {
  room.numbers.clear();
  for (const std::int32_t entry : given.of(head)) {
    if (given.first + entry < key_summaries.count) room.numbers.push_back(given.first + entry);
  }
  room.scores.resize(room.numbers.size());
  dot_gather(query, 1, key_summaries, room.numbers.data(), std::ssize(room.numbers),
             room.scores.data(), std::ssize(room.numbers));
  rank_not_numbers_last(room.scores);
  room.scored.clear();
  for (std::size_t i = 0; i < room.numbers.size(); ++i)
    room.scored.push_back({room.scores[i], room.numbers[i]});
  return room.scored;
}

void RuleBasedIndex::search(const QueryBlock& queries, std::int64_t k,
                            const CandidateEntries* given, SearchResult& result) const {
  key_list().check_search(spec(), built(), queries, k);
  check_groups(spec(), queries);
  const std::int64_t group = queries.group;
  k = std::min(k, std::max<std::int64_t>(size(), 1));
  result.reset(queries.count, k);
  if (size() == 0) return;
  const std::int64_t tokens = joins_questions() ? queries.tokens : 1;
  parallel_for(queries.count / group / tokens, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t question = begin; question < end; ++question)
      search_question(queries, question * tokens * group, tokens, k, given, result);
  });
}

/// first: the number of the first of its queries.
void RuleBasedIndex::search_question(const QueryBlock& queries, std::int64_t first,
                                     std::int64_t tokens, std::int64_t k,
                                     const CandidateEntries* given, SearchResult& result) const {
  const Scratch<ChoosingWorkspace> workspace;
  auto& [allowed, found, scores, ranked] = *workspace;
  allowed.clear();
  std::int64_t most = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    allowed.push_back(
        key_list().clamp(queries.allowed[static_cast<std::size_t>(first + t * queries.group)]));
    most = std::max(most, allowed.back().size());
  }
  if (most == 0) return;
  const std::int64_t count = tokens * queries.group;
  if (std::ssize(found) < count) found.resize(static_cast<std::size_t>(count));
  const auto lists = std::span(found).first(static_cast<std::size_t>(count));
  const TokenHeads heads{queries.query(first), queries.group, queries.dim, queries.score_scale()};
  // Once, but where a chosen key's score is beyond float32: then more are chosen, to have k.
  bool enough = false;
  for (std::int64_t want = k; !enough; want *= 2) {
    for (auto& list : lists) list.clear();
    const auto all = [&](std::int64_t keys) { return takes_all(keys, want); };
    const bool asked = given != nullptr && want == k && !all(most);
    const bool chosen = asked && choose_given(heads, allowed[0], k, *given, lists);
    if (asked) reach_fault(chosen ? "search.choice_taken" : "search.choice_dropped");
    if (!all(most) && !chosen) {
      for (auto& list : lists) list.clear();
      choose_together(heads, allowed, want, lists);
    }
    enough = true;
    for (std::int64_t q = 0; q < count; ++q) {
      const PositionRange range = allowed[static_cast<std::size_t>(q / queries.group)];
      std::vector<std::int64_t>& list = lists[static_cast<std::size_t>(q)];
      if (all(range.size())) {
        list.resize(static_cast<std::size_t>(range.size()));
        std::iota(list.begin(), list.end(), range.begin);
      }
      scores.resize(list.size());
      dot_gather(queries.query(first + q), 1, keys(), list.data(), std::ssize(list), scores.data(),
                 std::ssize(list));
      ranked.clear();
      for (std::size_t i = 0; i < list.size() && std::ssize(ranked) < k; ++i) {
        if (!std::isnan(scores[i])) ranked.push_back({scores[i], list[i]});
      }
      std::sort(ranked.begin(), ranked.end(), ranks_before);
      write_result(ranked, first + q, result);
      enough = enough && (all(range.size()) || std::ssize(ranked) == k || std::ssize(list) < want);
    }
  }
}

}  // namespace topkv
