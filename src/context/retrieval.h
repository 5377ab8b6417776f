// Choosing rows for the queries of one KV head's group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/key_index.h"
#include "topkv/session.h"

namespace topkv {

/// The rows that each query of a block attends, in two arrays: the context's and the session's
/// own. Positions are within their array, ascending and unique.
struct Selection {
  std::vector<std::int64_t> context;
  std::vector<std::int64_t> own;
};

/// Keeps its buffers, so that selecting in the decode step does not allocate once it has grown.
class Selector {
 public:
  /// Searches the context's index and the session's own for the k best of each query.
  /// queries: [query_count, dim]. context_allowed, own_allowed: per query, positions within each
  /// array.
  void search(const KeyIndex& context, const KeyIndex& own, const float* queries,
              std::int64_t query_count, std::int64_t dim,
              std::span<const PositionRange> context_allowed,
              std::span<const PositionRange> own_allowed, std::int64_t k);

  /// Of what was found last, has each query attend the k best of both together. So many queries
  /// that follow each other, `shared`, share one selection: the k best for any of them.
  /// REQUIRES: no more than were searched for.
  void choose(std::int64_t k, std::int64_t shared);

  /// Goes on with these of the queries alone (ascending), which are numbered anew.
  void keep(std::span<const std::int64_t> queries);

  /// Has so many queries attend nothing.
  void reset(std::int64_t queries);

  /// Has query i attend all of the session's own positions in a range.
  void take_own(std::int64_t query, const PositionRange& range);

  /// The lowest score (q·k) of what was selected for a query: no other row that was searched scores
  /// higher. Infinity where all were taken.
  float lowest(std::int64_t query) const { return lowest_[static_cast<std::size_t>(query)]; }

  /// What query i attends.
  const Selection& of(std::int64_t query) const {
    return selections_[static_cast<std::size_t>(query)];
  }

 private:
  struct Candidate {
    float score;
    std::int64_t position;  // own rows are numbered after all of the context's
  };
  void take_best(std::int64_t k);

  std::int64_t context_size_ = 0;
  SearchResult from_context_;
  SearchResult from_own_;
  std::vector<Candidate> candidates_;
  std::vector<Selection> selections_;  // per query
  std::vector<float> lowest_;          // per query
};

}  // namespace topkv
