// The tail: a partial that stands for all rows of a KV head that were not attended themselves,
// estimated from a few bytes of each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/attention.h"
#include "topkv/key_index.h"

namespace topkv {

/// Const members are safe from many threads.
class RowTail {
 public:
  virtual ~RowTail() = default;

  /// Estimates, for each query, the partial over the rows of its allowed range that are not among
  /// `taken` (ascending positions, per query). Scores are scale * q·k, capped when softcap > 0.
  /// ceilings: per query, what no such row's score exceeds (infinity: not known); without it the
  /// errors of many estimates would drown what a sharp query found.
  /// Overwrites out, of one head per query; a query without such rows gets the empty partial. The
  /// result does not depend on the number of threads.
  virtual void attend(const QueryBlock& queries,
                      std::span<const std::span<const std::int64_t>> taken,
                      std::span<const float> ceilings, float scale, float softcap,
                      PartialView out) const = 0;

  /// Bytes held beyond the rows and the index that it was made with.
  virtual std::int64_t memory() const = 0;
};

}  // namespace topkv
