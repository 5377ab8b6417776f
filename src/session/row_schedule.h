// The number of rows that a search is asked for: k, or the rounds of a rule
// (RetrievalOptions::mass, error).
#pragma once

#include <cstdint>
#include <vector>

#include "topkv/session.h"

namespace topkv {

/// The rows of each round of a step, for each query head. Without a rule a step has one round, of k
/// rows.
class RowSchedule {
 public:
  /// The rules are off until use_rules(). Throws InvalidArgument as TopK::resolve does.
  RowSchedule(const RetrievalOptions& options, std::int64_t layers, std::int64_t context_tokens);

  /// Turns the rules on. Before, each step has one round.
  void use_rules() { has_rules_ = true; }

  std::int64_t k(std::int64_t layer) const { return k_[static_cast<std::size_t>(layer)]; }
  /// Returns the rows of the first round.
  std::int64_t first(std::int64_t layer) const;
  /// Returns the rows of the round after a round of `rows` rows. 0: all rows of the context.
  std::int64_t after(std::int64_t layer, std::int64_t rows) const;
  /// Returns the most rows that a search is asked for.
  std::int64_t most(std::int64_t layer) const;
  /// Returns the rows of the last round that is not all rows.
  std::int64_t last(std::int64_t layer) const;

 private:
  std::vector<std::int64_t> k_;  // per layer
  std::int64_t context_tokens_;
  bool mass_, error_;  // which rules the options name
  bool has_rules_ = false;
};

}  // namespace topkv
