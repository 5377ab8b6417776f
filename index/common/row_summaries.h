// Rows in disjoint groups (pages of consecutive ones, clusters of similar keys), each group known
// by its size, the mean and the variance of its keys in each dimension, and the mean of its values.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "src/core/format/archive.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/view.h"

namespace topkv {

/// Which group a row is in.
struct Grouping {
  std::int64_t groups = 0;
  std::int64_t page = 0;                ///< above 0: row r is in group r / page,
  const std::int32_t* group = nullptr;  ///< else in group[r]

  std::int64_t of(std::int64_t row) const {
    return page > 0 ? row / page : std::int64_t{group[row]};
  }
};

/// Reading: throws FileError unless each is in one of so many groups, and each of these has some.
void check_groups_used(std::span<const std::int32_t> group, std::int64_t groups,
                       const Archive& archive);

/// Rows group by group, ascending in each.
class GroupedRows {
 public:
  GroupedRows() = default;
  /// Of rows 0 to count - 1.
  GroupedRows(const Grouping& grouping, std::int64_t count);

  /// The place where a group begins and, of the number of groups, where the last one ends.
  std::int64_t begin(std::int64_t group) const { return begin_[static_cast<std::size_t>(group)]; }
  /// The row at a place.
  std::int64_t row(std::int64_t at) const {
    return rows_.empty() ? at : rows_[static_cast<std::size_t>(at)];
  }
  /// The rows of a group. REQUIRES: groups that are not pages.
  std::span<const std::int64_t> rows_of(std::int64_t group) const {
    return std::span(rows_).subspan(static_cast<std::size_t>(begin(group)),
                                    static_cast<std::size_t>(begin(group + 1) - begin(group)));
  }
  std::int64_t memory() const {
    return static_cast<std::int64_t>((begin_.capacity() + rows_.capacity()) * sizeof(std::int64_t));
  }

 private:
  std::vector<std::int64_t> begin_;  // [groups + 1]
  std::vector<std::int64_t> rows_;   // empty: they are as they stand
};

/// What stands for a group without some of its rows.
struct GroupLess {
  std::int64_t count = 0;
  std::vector<float> keys;   ///< [2, dim]: mean, variance
  std::vector<float> value;  ///< [dim], the mean
};

class RowSummaries {
 public:
  RowSummaries() = default;
  /// Throws InvalidArgument when a value is not finite, Stopped when that is requested.
  RowSummaries(const RowsView& rows, const Grouping& grouping, const std::stop_token& stop);

  std::int64_t groups() const { return std::ssize(counts_); }
  std::int64_t count(std::int64_t group) const { return counts_[static_cast<std::size_t>(group)]; }
  /// Per group [2, dim]: the mean of its keys, then their variance.
  KeyView keys() const;
  /// Per group the mean of its values.
  KeyView values() const;
  /// |value - mean of the group|², on average over its rows.
  float spread(std::int64_t group) const { return spreads_[static_cast<std::size_t>(group)]; }

  /// A group without these of its rows, each once.
  void without(const RowsView& rows, std::int64_t group, std::span<const std::int64_t> removed,
               GroupLess& out) const;

  std::int64_t memory() const;

  /// For a file, of these rows in these groups.
  void fields(const RowsView& rows, const Grouping& grouping, Archive& archive);

 private:
  std::int64_t dim_ = 0;
  std::vector<std::int32_t> counts_;
  HugeVector<float> keys_;    // [groups, 2, dim]
  HugeVector<float> values_;  // [groups, dim]
  std::vector<float> spreads_;
};

}  // namespace topkv
