// Choosing rows for the queries of one KV head's group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/context/segment.h"
#include "topkv/key_index.h"
#include "topkv/session.h"

namespace topkv {

/// For each query of a block, the rows that it attends in each of some segments, which go by their
/// number here. Keeps its buffers, so that selecting in the decode step does not allocate once it
/// has grown.
class Selector {
 public:
  /// segments: they outlive this.
  explicit Selector(std::span<const Segment> segments)
      : segments_(segments), found_(segments.size()), chosen_(segments.size()) {}

  /// What a search of a segment finds for the queries, to be put here.
  SearchResult& found(std::size_t segment) { return found_[segment]; }

  /// Of what was found last, has each query attend the k best of all segments together.
  /// REQUIRES: no more than were searched for.
  void choose(std::int64_t k);

  /// The queries of some tokens for a KV head.
  struct Groups {
    const float* queries = nullptr;  // [tokens, heads, dim]
    std::int64_t heads = 1;
    std::int64_t layer = 0, kv_head = 0;
    float scale = 1, softcap = 0;
  };
  /// Likewise, but that the heads of a group share one selection: the k rows with the largest sum
  /// of the heads' softmax weights, of those that are among the k best of any head. (Weights are
  /// relative to what all of these weigh for a head.)
  void choose_shared(std::int64_t k, const Groups& groups);

  /// Goes on with these of the queries alone (ascending), which are numbered anew.
  void keep(std::span<const std::int64_t> queries);

  /// For so many queries there was no search.
  void find_nothing(std::int64_t queries);

  /// Has so many queries attend nothing.
  void reset(std::int64_t queries);

  /// Has a query attend all of a range of a segment's positions, and no others of it.
  void take(std::size_t segment, std::int64_t query, const PositionRange& range);

  /// A score (q·k) that no row has for a query that was searched and not selected, but for what an
  /// approximate search misses. Infinity where all were taken.
  float ceiling(std::int64_t query) const { return ceilings_[static_cast<std::size_t>(query)]; }

  /// What a query attends: positions within the segment, ascending and unique.
  const std::vector<std::int64_t>& of(std::size_t segment, std::int64_t query) const {
    return chosen_[segment][static_cast<std::size_t>(query)];
  }
  /// How many rows that is in the first so many segments.
  std::int64_t rows(std::int64_t query, std::size_t segments) const;

 private:
  struct Candidate {
    float score;
    std::int64_t position;  // of the sequence
  };
  void collect(std::int64_t query, std::int64_t k);
  void take_best(std::int64_t k);
  void score_candidates(const Groups& groups, std::int64_t first);
  void give(std::int64_t query);

  std::span<const Segment> segments_;
  std::vector<SearchResult> found_;                             // per segment
  std::vector<std::vector<std::vector<std::int64_t>>> chosen_;  // likewise, per query
  std::vector<Candidate> candidates_;
  std::vector<Candidate> all_;           // of a group, before some are taken
  std::vector<float> ceilings_;          // per query
  std::vector<std::int64_t> positions_;  // of candidates, within a segment
  std::vector<float> scores_,
      weights_;  // of candidates for the heads of a group: [heads, candidates]
};

}  // namespace topkv
