// The attention that each position gets (RetrievalOptions::measure_attention).
//
// The sources of a step note the rows that they attend exactly. The merge of the step gives the
// log-sum-exp of each query head. These rows are then scored once more, and each score gives a
// softmax weight.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/session/step.h"

namespace topkv {

/// The sums of one session.
///
/// A call of attend goes: begin_call, then for each part of its tokens begin, add, take_queries and
/// end, and at last end_call. A call that fails adds nothing.
///
/// Threads: one thread at a time.
class PositionMass {
 public:
  /// session: outlives this.
  explicit PositionMass(const SessionCore& session) : session_(session) {}

  /// Drops the weights of a call that has failed.
  void begin_call();
  /// Begins a part, of which no row is noted yet. The part writes its log-sum-exp from now on.
  void begin(Step& step);
  /// Notes rows beyond sinks and window that a query head of the token at `position` attends.
  /// segment: the number of the rows' segment; rows: counted within it. No row is noted twice.
  void add(std::int64_t position, std::int64_t q_head, std::size_t segment,
           std::span<const std::int64_t> rows);
  /// Notes consecutive rows that all query heads of the token attend.
  void add(std::int64_t position, std::size_t segment, const PositionRange& rows);
  /// Copies the queries of the part. The result of a step may overwrite them.
  void take_queries(const Step& step);
  /// Weighs the rows of the part, whose log-sum-exp is known.
  void end(const Step& step);
  /// Adds the weights of all parts to the sums.
  void end_call();

  /// Forgets the sums of positions from `tokens` on.
  void truncate(std::int64_t tokens);
  /// Returns the sums of the first `tokens` positions.
  std::vector<double> sums(std::int64_t tokens) const;
  void set_sums(std::vector<double> sums) { sums_ = std::move(sums); }

 private:
  /// The rows of a segment that one query attends, and their scores.
  struct Rows {
    std::vector<std::int64_t> rows;
    std::vector<float> weights;
  };
  /// Rows of one segment that all query heads attend.
  struct Range {
    std::size_t segment = 0;
    PositionRange rows;
  };

  Rows& rows_of(std::int64_t token, std::int64_t q_head, std::size_t segment);
  void add_always_attended(std::int64_t layer, std::int64_t token);
  void weigh(std::int64_t layer, std::int64_t token, const Range& range, const float* lse);
  void weigh_found(std::int64_t layer, std::int64_t token, const float* lse);
  void add_weight(std::int64_t position, double weight);

  const SessionCore& session_;
  std::int64_t first_ = 0;                  // position of the part's first token
  std::vector<Rows> found_;                 // [tokens, q_heads, segments]
  std::vector<std::vector<Range>> ranges_;  // [tokens]
  std::vector<float> queries_;              // [tokens, q_heads, head_dim]
  std::vector<float> lse_;                  // [tokens, q_heads], if the caller wants none itself
  std::vector<double> range_weights_;       // of the rows of a range
  std::vector<double> call_;                // per position, of the call so far
  std::vector<std::int64_t> weighed_;       // positions with a weight in call_
  std::vector<double> sums_;                // per position
};

}  // namespace topkv
