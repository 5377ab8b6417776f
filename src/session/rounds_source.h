// A source that finds rows round by round, for the rules of RetrievalOptions::mass and error.
#pragma once

#include <cstdint>

#include "index/common/row_tail.h"
#include "src/session/attention_source.h"

namespace topkv {

/// Tokens of a step that go through the rounds of a rule together.
struct Round {
  Step& step;
  std::int64_t token = 0;     ///< the number of the first token in the step
  std::int64_t in_block = 0;  ///< its number in the block that rows were found for
  TokenQueries queries;       ///< of these tokens
  PartialView exact;          ///< the partial over sinks and window, read only
  /// The partials of these tokens over all other rows: the tail's estimate of rows that are not
  /// attended, and all rows that are attended.
  TailParts out;

  std::int64_t layer() const { return step.layer(); }
};

/// A source whose work a rule can judge and repeat with more rows.
class RoundsSource : public AttentionSource {
 public:
  /// Finds rows of the first round for a block of the step's tokens, from number `first` on.
  virtual void find(Step& step, std::int64_t first, const TokenQueries& block) = 0;
  /// Returns how many tokens of a block go through rounds together.
  virtual std::int64_t round_tokens(std::int64_t block_tokens) const = 0;
  /// Attends the rows of the first round, and the tail of the others.
  virtual void attend_first(const Round& round) = 0;
  /// The queries that HeadSteps still has attend `rows` rows of the context, and the tail of the
  /// others.
  virtual void attend_more(const Round& round, std::int64_t rows) = 0;
  /// Takes rows that are not in the selection (HeadStep::selector) off the counts, for the queries
  /// that HeadSteps still has, and notes the rows of the next round; 0: all. The caller takes
  /// selected rows off.
  virtual void discount(const Round& round, std::int64_t rows) = 0;
  /// Counts the seconds that a step waited for the partials of its window, and of scans.
  virtual void count_wait(std::int64_t layer, double seconds) = 0;
  /// With RetrievalOptions::measure_recall: counts what a block's queries were to find, and found.
  virtual void measure_recall(Step& step, const TokenQueries& block) = 0;
};

}  // namespace topkv
