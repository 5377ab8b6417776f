// Attention over rows that become known one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/attention.h"
#include "topkv/view.h"

namespace topkv {

/// Rows are asked for as they are added, and scored while others are still to come. The result is
/// that of attend_rows for their positions ascending, bit for bit: it does not depend on the order
/// in which they came.
class ArrivingRows {
 public:
  /// Empties it. queries: [heads, rows.dim], valid until attend.
  void begin(const float* queries, std::int64_t heads, const RowsView& rows);
  /// Each at most once. REQUIRES: position < 2^32.
  void add(std::int64_t position);
  /// Scores a few of those that have had the time to come. False: there are none left; the ones
  /// added since are for the next time.
  bool score_some();
  /// Over all that were added, for the `heads` of begin. out.head_dim: rows.dim.
  void attend(float scale, float softcap, PartialView out);
  /// After attend: of all of them, ascending.
  std::span<const std::int64_t> positions() const { return positions_; }

 private:
  void score_quad(const std::int64_t* positions);
  void sort_arrived();

  const float* queries_ = nullptr;
  std::int64_t heads_ = 0;
  RowsView rows_ = {};
  std::vector<std::int64_t> arrived_;
  std::vector<float> scores_;            // [arrived, heads]
  std::size_t scored_ = 0;               // of what arrived, the first
  std::size_t come_ = 0;                 // likewise: had arrived at the last look
  std::vector<std::uint64_t> order_;     // position and, below, number of what arrived, ascending
  std::vector<std::int64_t> positions_;  // in that order
};

}  // namespace topkv
