// A source that finds rows round by round, for the rules of RetrievalOptions::mass and error.
#pragma once

#include <cstdint>

#include "src/session/attention_source.h"

namespace topkv {

/// A source whose work a rule can judge and repeat with more rows. A round is for a block of
/// round_tokens tokens.
class RoundsSource : public AttentionSource {
 public:
  /// Finds rows of the first round for a block of the step's tokens.
  virtual void find(const StepBlock& block) = 0;
  /// Returns how many tokens of such a block go through rounds together.
  virtual std::int64_t round_tokens(std::int64_t block_tokens) const = 0;
  /// Attends the rows of the first round, and the tail of the others.
  virtual void attend_first(const StepBlock& round) = 0;
  /// The queries that QueriesByHead still has attend `rows` rows of the context, and the tail of
  /// the others.
  virtual void attend_more(const StepBlock& round, std::int64_t rows) = 0;
  /// Takes rows that are not in the selection (HeadQueries::selector) off the counts, for the
  /// queries that QueriesByHead still has, and notes the rows of the next round; 0: all. The caller
  /// takes selected rows off.
  virtual void discount(const StepBlock& round, std::int64_t rows) = 0;
  /// Counts the seconds that a step waited for the partials of its window, and of scans.
  virtual void count_wait(std::int64_t layer, double seconds) = 0;
  /// With RetrievalOptions::measure_recall: counts what a block's queries were to find, and found.
  virtual void measure_recall(const StepBlock& block) = 0;
};

}  // namespace topkv
