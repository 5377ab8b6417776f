// What approximate indices have in common: they propose candidates, and this class makes a result
// of them.
//
// A search has two sources of candidates: what the index proposes, and the keys that it stands for
// worst (rare_keys.h).
//
// Candidates are scored again, exactly, against the keys where they lie, so that the scores and the
// order of a result mean the same whatever index it came from. When an index proposes too few
// candidates within the allowed range it is asked for twice as many, and so on; where that would
// cost more than reading the range, the range is read. So a search finds min(k, allowed keys).
#pragma once

#include <span>
#include <vector>

#include "index/common/inserting_index.h"
#include "index/common/rare_keys.h"

namespace topkv {

class ApproximateIndex : public InsertingIndex {
 public:
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const final;

  std::span<const std::int64_t> rare() const final { return rare_.positions(); }
  /// Returns the positions of rare() in a range.
  std::span<const std::int64_t> rare_in(PositionRange range) const {
    return rare_.positions(range);
  }

 protected:
  /// Graphs and lists lose more of the rare keys than codes do. (needle-14m, 64 Ki tokens of noise:
  /// hnsw finds none of ten needles without them, 9 with one of 256 keys, 10 with one of 128.)
  explicit ApproximateIndex(std::int64_t keys_per_rare = 128) : rare_(keys_per_rare) {}

  /// InsertingIndex::insert.
  /// residuals: becomes how badly each of these keys is stood for, in a unit of the index's own; or
  /// each of all keys, where what came made that of earlier ones another.
  virtual void insert_judged(std::int64_t first, std::vector<float>& residuals,
                             const std::stop_token& stop) = 0;

  /// InsertingIndex::clear, but for what is known here.
  virtual void clear_structure() = 0;

  /// InsertingIndex::fields, likewise.
  virtual void structure_fields(Archive& archive) = 0;

  std::int64_t rare_memory() const { return rare_.memory(); }

  /// Replaces `found` by candidates for one query [dim], in any order: about `want` of them or
  /// more, if it has them. Positions outside the allowed range (within the keys, not empty),
  /// duplicates and -1 are dropped by the caller. Safe from many threads.
  virtual void candidates(const float* query, PositionRange allowed, std::int64_t want,
                          std::vector<std::int64_t>& found) const = 0;

  /// The same for several queries, those of empty ranges left out: found[q] is query q's; each
  /// group's have one range. Here one by one, on the threads of the caller's arena.
  virtual void all_candidates(const QueryBlock& queries, std::int64_t want,
                              std::span<std::vector<std::int64_t>> found) const;

 private:
  void insert(std::int64_t first, const std::stop_token& stop) final;
  void clear() final;
  void fields(Archive& archive) final;
  void search_group(const QueryBlock& queries, std::int64_t first, std::int64_t k,
                    std::span<std::vector<std::int64_t>> found, SearchResult& result) const;
  /// The rare keys that a query may find, ascending, and its scores of them.
  struct ScoredRare {
    std::span<const std::int64_t> positions;
    const float* scores;
  };
  void search_one(const QueryBlock& queries, std::int64_t query, std::int64_t k,
                  const ScoredRare& rare, std::vector<std::int64_t>& found,
                  SearchResult& result) const;

  RareKeys rare_;
};

}  // namespace topkv
