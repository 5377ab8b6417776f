// Choosing the rows that the queries of one KV head attend, after a search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/context/segment.h"
#include "src/core/math/topk.h"
#include "topkv/key_index.h"
#include "topkv/session.h"

namespace topkv {

/// The rows that each query of a block attends, in each of several segments. Segments go by their
/// number here.
///
/// It keeps its buffers, so that a decode step does not allocate once they have grown.
class Selector {
 public:
  /// The segments outlive this.
  explicit Selector(std::span<const Segment> segments)
      : segments_(segments), found_(segments.size()), chosen_(segments.size()) {}

  /// Returns the place for the result of a search of a segment.
  SearchResult& found(std::size_t segment) { return found_[segment]; }

  /// Lets each query attend the k best rows that were found last, of all segments together.
  /// REQUIRES: k is at most the k of the search.
  void choose(std::int64_t k);

  /// Lets the heads of a group attend one selection of k rows. The candidates are the k best rows
  /// of each head that were found last. The k candidates with the largest sum of the heads' softmax
  /// weights are selected. A head's weights are its softmax over the candidates.
  /// queries: the queries of that search, in groups.
  void choose_shared(std::int64_t k, std::int64_t layer, std::int64_t kv_head,
                     const QueryBlock& queries, float softcap);

  /// Keeps the search results of these queries alone, and numbers them anew from 0. `queries` is
  /// ascending.
  void keep(std::span<const std::int64_t> queries);

  /// Sets empty search results for a number of queries.
  void find_nothing(std::int64_t queries);

  /// Sets empty selections for a number of queries.
  void reset(std::int64_t queries);

  /// Lets a query attend a range of a segment's positions, and no other position of the segment.
  void take(std::size_t segment, std::int64_t query, const PositionRange& range);

  /// Returns a bound for a query's scores q·k of rows that were searched and not selected. Rows
  /// that an approximate search missed may be above it. Infinity: every row that was found is
  /// selected.
  float ceiling(std::int64_t query) const { return ceilings_[static_cast<std::size_t>(query)]; }

  /// Returns the positions that a query attends in a segment: ascending, unique, counted within the
  /// segment.
  const std::vector<std::int64_t>& of(std::size_t segment, std::int64_t query) const {
    return chosen_[segment][static_cast<std::size_t>(query)];
  }
  /// Returns how many rows a query attends in the first `segments` segments.
  std::int64_t rows(std::int64_t query, std::size_t segments) const;

 private:
  void collect(std::int64_t query, std::int64_t k);
  void keep_best(std::int64_t k);
  void score_candidates(std::int64_t layer, std::int64_t kv_head, const QueryBlock& queries,
                        std::int64_t first, float softcap);
  void give(std::int64_t query);

  std::span<const Segment> segments_;
  std::vector<SearchResult> found_;                             // per segment
  std::vector<std::vector<std::vector<std::int64_t>>> chosen_;  // per segment and query
  std::vector<Scored> candidates_;       // by positions in the whole sequence
  std::vector<Scored> all_;              // candidates of a group, before the best are chosen
  std::vector<float> ceilings_;          // per query
  std::vector<std::int64_t> positions_;  // of candidates, counted within a segment
  std::vector<float> scores_,
      weights_;  // of a group: [heads, candidates]
};

}  // namespace topkv
