// SparQ's mean value reallocation (sparq_index.h): with α the share of the approximate softmax that
// the attended rows have, y = α y_k + (1 - α) v̄, where v̄ is the mean of all values (algorithm 1,
// lines 4 and 5).
//
// As a partial: v̄ with the mass that all other rows have by the approximate scores, times what the
// attended rows' true mass is of their approximate one. Sinks and window, which the paper chooses
// among the k, have their true mass.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "index/common/row_tail.h"
#include "index/methods/sparq_index.h"
#include "src/core/format/archive.h"

namespace topkv {

class SparqTail final : public RowTail {
 public:
  /// index: over the rows' keys; it and the rows outlive this. Throws InvalidArgument when a value
  /// is not finite, Stopped when that is requested.
  SparqTail(const SparqIndex& index, const RowsView& rows, const std::stop_token& stop);

  /// That fields() is to read.
  SparqTail(const SparqIndex& index, const RowsView& rows) : index_(index), rows_(rows) {}
  /// For a file.
  void fields(Archive& archive);

  /// Errors of the masses are not known, and told as none.
  void attend(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
              std::span<const float> ceilings, float scale, float softcap,
              const TailParts& out) const override;

  std::int64_t memory() const override;

 private:
  const SparqIndex& index_;
  RowsView rows_;
  std::vector<float> mean_;  // of all values
  float spread_ = 0;         // |value - mean|², on average
};

}  // namespace topkv
