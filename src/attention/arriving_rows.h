// Attention over rows that become known one after another.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/chunk_passes.h"
#include "topkv/attention.h"
#include "topkv/view.h"

namespace topkv {

/// Rows are asked for as they are added, and scored while others are still to come. The result is
/// that of attend_rows for their positions ascending, bit for bit: it does not depend on the order
/// in which they came.
class ArrivingRows {
 public:
  /// The queries of a token that meet a range of the rows.
  struct Queries {
    const float* data = nullptr;  ///< [heads, rows.dim], valid until attend
    PositionRange meet = all_positions;
  };

  /// Empties it. queries: at most query_forms, whose ranges are disjoint.
  void begin(std::span<const Queries> queries, std::int64_t heads, const RowsView& rows);
  /// Each at most once. REQUIRES: position < 2^32, and a query meets it.
  void add(std::int64_t position);
  /// Scores a few of those that have had the time to come. False: there are none left; the ones
  /// added since are for the next time.
  bool score_some();
  /// Over all that were added, for the `heads` of begin. out.head_dim: rows.dim.
  void attend(float scale, float softcap, PartialView out);
  /// After attend: of all of them, ascending.
  std::span<const std::int64_t> positions() const { return positions_; }

 private:
  /// The rows that the same queries meet.
  struct Part {
    Queries queries;
    std::vector<std::int64_t> arrived;
    std::vector<float> scores;  // [arrived, heads]
    std::size_t scored = 0;     // of what arrived, the first
    std::size_t come = 0;       // likewise: had arrived at the last look
  };

  void score_quad(Part& part, const std::int64_t* positions) const;
  void score_rest(Part& part) const;
  void sort_arrived();

  std::int64_t heads_ = 0;
  RowsView rows_ = {};
  std::array<Part, query_forms> parts_;
  std::size_t part_count_ = 0;
  // Position and, below, the part and the number of what arrived, ascending.
  std::vector<std::uint64_t> order_;
  std::vector<std::int64_t> positions_;  // in that order
};

}  // namespace topkv
