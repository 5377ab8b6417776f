// Indices of methods that choose rows by a rule of their own (pages, components of keys, clusters):
// what they choose is attended as it is, as their papers have it, and scores are exact.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "index/common/inserting_index.h"
#include "index/common/key_summaries.h"
#include "index/common/topk_stream.h"

namespace topkv {

/// One token's queries for a KV head.
struct TokenHeads {
  const float* queries;  // [heads, dim]
  std::int64_t heads;
  std::int64_t dim;
  float scale;  // of scores, in attention

  const float* query(std::int64_t head) const { return queries + head * dim; }
};

/// Scores of keys, or of what stands for them, for queries [heads, dim]: out[h * keys.count + i]. A
/// thread takes so many at a time.
void score_all(const float* queries, std::int64_t heads, const KeyView& keys,
               std::int64_t at_a_time, float* out);

/// Scores that are beyond float32 and so not numbers come last: what they are of is found where
/// there is nothing else.
inline void rank_not_numbers_last(std::span<float> scores) {
  for (float& score : scores) score = std::isnan(score) ? no_threshold : score;
}

/// Memory that score_given works in.
struct GivenScores {
  std::vector<std::int64_t> numbers;
  std::vector<float> scores;
  std::vector<Scored> scored;
};
/// Scores for a query of the entries that were given for a head, in their order.
std::span<Scored> score_given(const float* query, const KeyView& key_summaries,
                              const CandidateEntries& given, std::int64_t head, GivenScores& room);

class RuleBasedIndex : public InsertingIndex {
 public:
  /// Throws InvalidArgument where queries are not whole groups whose heads have one range, or not
  /// whole questions.
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const final {
    search(queries, k, nullptr, result);
  }
  /// Entries are chosen as entry_choice says.
  void search_given(const QueryBlock& queries, std::int64_t k, const CandidateEntries& given,
                    SearchResult& result) const final {
    search(queries, k, &given, result);
  }
  /// Searches as search_given does. given: null if the index chooses for itself.
  void search(const QueryBlock& queries, std::int64_t k, const CandidateEntries* given,
              SearchResult& result) const;

  bool takes_all(std::int64_t allowed, std::int64_t k) const final {
    return allowed <= k && !chooses_fewer();
  }

 protected:
  /// Whether it may choose fewer than k where there are more, and so is asked even where k are all.
  virtual bool chooses_fewer() const { return false; }

  /// found[h]: up to k of the positions in the allowed range, which is not empty, lies within the
  /// keys and, but for those that choose fewer, holds more than k; each once, those that it would
  /// rather have first. Safe from many threads.
  virtual void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                      std::span<std::vector<std::int64_t>> found) const = 0;

  /// Whether the tokens of a question choose together: else choose() is asked for each.
  virtual bool joins_questions() const { return false; }

  /// Likewise for all tokens of a question: queries [tokens, heads, dim], a range for each token,
  /// which may be empty or hold no more than k; found[t * heads + h].
  virtual void choose_together(const TokenHeads& first, std::span<const PositionRange> allowed,
                               std::int64_t k, std::span<std::vector<std::int64_t>> found) const {
    choose(first, allowed[0], k, found);
  }

  /// As choose(), from entries that were given. False: they are too few, and found is not to be
  /// used. REQUIRES: there are key summaries.
  virtual bool choose_given(const TokenHeads& /*token*/, PositionRange /*allowed*/,
                            std::int64_t /*k*/, const CandidateEntries& /*given*/,
                            std::span<std::vector<std::int64_t>> /*found*/) const {
    return false;
  }

 private:
  void search_question(const QueryBlock& queries, std::int64_t first, std::int64_t tokens,
                       std::int64_t k, const CandidateEntries* given, SearchResult& result) const;
};

}  // namespace topkv
