// The queries of each KV head in a step, and the rows that are selected for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/common/row_tail.h"
#include "src/session/selector.h"
#include "src/session/session_core.h"
#include "src/session/step.h"
#include "topkv/attention.h"
#include "topkv/key_index.h"

namespace topkv {

/// The queries of one KV head, and the rows that they attend. Its buffers are kept from step to
/// step.
struct HeadQueries {
  explicit HeadQueries(std::span<const Segment> segments)
      : selector(segments), allowed(segments.size()) {}

  Selector selector;
  std::vector<std::int64_t> query_ids;              // number of each query in [tokens x group]
  std::vector<float> queries;                       // [queries, dim]
  std::vector<std::vector<PositionRange>> allowed;  // per segment and query: what may be found
  Partial retrieved;
  std::vector<std::span<const std::int64_t>> taken;  // per query: attended rows of the context
  std::vector<float> ceilings;            // per query: bound for scores of all other rows
  EstimateBuffer estimate;                // the tail's estimate,
  Partial rare;                           // and the rows that it attends as they are
  std::vector<std::int64_t> unsatisfied;  // queries for which a rule asks for more rows

  std::int64_t count() const { return std::ssize(query_ids); }
};

/// The queries of all KV heads of a session, in one block of a step's tokens.
class QueriesByHead {
 public:
  explicit QueriesByHead(SessionCore& session)
      : session_(session),
        heads_(static_cast<std::size_t>(session.shape.kv_heads), HeadQueries(session.segments)) {}

  HeadQueries& operator[](std::int64_t head) { return heads_[static_cast<std::size_t>(head)]; }
  const HeadQueries& operator[](std::int64_t head) const {
    return heads_[static_cast<std::size_t>(head)];
  }
  auto begin() { return heads_.begin(); }
  auto end() { return heads_.end(); }
  auto begin() const { return heads_.begin(); }
  auto end() const { return heads_.end(); }

  /// Copies a KV head's queries of a block, and sets the rows that each may find: between the
  /// sinks and its window.
  void copy_queries(const StepBlock& block, std::int64_t head);

  /// Returns a KV head's queries as an index takes them. They are in groups, as one question, if
  /// they are all queries of some tokens. Queries that a rule asks more rows for need not be.
  /// allowed: per query.
  QueryBlock block(std::int64_t head, std::span<const PositionRange> allowed) const;

  /// Returns the number of a KV head's query in partials of [tokens x q_heads].
  std::int64_t place(std::int64_t head, std::int64_t query) const;

  /// Attends the selected rows of all queries, and merges them into the block's exact partial.
  void attend_selected(const StepBlock& block);

 private:
  /// Notes the selected rows for RetrievalOptions::measure_attention.
  void note_selected(const StepBlock& block);

  SessionCore& session_;
  std::vector<HeadQueries> heads_;  // per KV head
};

}  // namespace topkv
