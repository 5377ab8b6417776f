#include "index/common/row_summaries.h"

#include <algorithm>

#include "index/common/in_place_keys.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t rows_at_a_time = 4096;

/// Of a group's rows, in float64.
struct Sums {
  explicit Sums(std::int64_t dim)
      : keys(static_cast<std::size_t>(dim)), squares(keys), values(keys) {}
  void clear() {
    count = 0;
    value_squares = 0;
    for (auto* list : {&keys, &squares, &values}) std::fill(list->begin(), list->end(), 0.0);
  }
  void add(const float* key, const float* value) {
    ++count;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] += key[i];
      squares[i] += static_cast<double>(key[i]) * key[i];
      values[i] += value[i];
      value_squares += static_cast<double>(value[i]) * value[i];
    }
  }
  /// keys_out: [2, dim]; value_out: [dim]. Gives the values' spread. REQUIRES: rows.
  float give(float* keys_out, float* value_out) const {
    const auto n = static_cast<double>(count);
    double spread = value_squares / n;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double mean = keys[i] / n;
      keys_out[i] = static_cast<float>(mean);
      // Of one key alone: not what rounding leaves.
      keys_out[keys.size() + i] =
          count == 1 ? 0.0F : static_cast<float>(std::max(squares[i] / n - mean * mean, 0.0));
      value_out[i] = static_cast<float>(values[i] / n);
      spread -= values[i] / n * (values[i] / n);
    }
    return count == 1 ? 0.0F : static_cast<float>(std::max(spread, 0.0));
  }

  std::int64_t count = 0;
  std::vector<double> keys, squares, values;
  double value_squares = 0;
};

}  // namespace

void check_groups_used(std::span<const std::int32_t> group, std::int64_t groups,
                       const Archive& archive) {
  std::vector<bool> used(static_cast<std::size_t>(groups), false);
  for (const std::int32_t one : group) {
    archive.check(one >= 0 && one < groups, "a member is in an unknown group");
    used[static_cast<std::size_t>(one)] = true;
  }
  archive.check(std::ranges::find(used, false) == used.end(), "a group is empty");
}

GroupedRows::GroupedRows(const Grouping& grouping, std::int64_t count)
    : begin_(static_cast<std::size_t>(grouping.groups + 1)) {
  for (std::int64_t row = 0; row < count; ++row)
    ++begin_[static_cast<std::size_t>(grouping.of(row) + 1)];
  for (std::size_t g = 1; g < begin_.size(); ++g) begin_[g] += begin_[g - 1];
  if (grouping.page > 0) return;
  std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
  rows_.resize(static_cast<std::size_t>(count));
  for (std::int64_t row = 0; row < count; ++row) {
    auto& at = next[static_cast<std::size_t>(grouping.of(row))];
    rows_[static_cast<std::size_t>(at++)] = row;
  }
}

RowSummaries::RowSummaries(const RowsView& rows, const Grouping& grouping,
                           const std::stop_token& stop)
    : dim_(rows.dim()) {
  const GroupedRows in_groups(grouping, rows.count());
  const auto groups = static_cast<std::size_t>(grouping.groups);
  counts_.resize(groups);
  spreads_.resize(groups);
  keys_.resize(groups * 2 * static_cast<std::size_t>(dim_));
  values_.resize(groups * static_cast<std::size_t>(dim_));
  const std::int64_t grain = std::max<std::int64_t>(
      rows_at_a_time * grouping.groups / std::max<std::int64_t>(rows.count(), 1), 1);
  parallel_for(grouping.groups, grain, [&](std::int64_t from, std::int64_t to) {
    if (stop.stop_requested()) throw Stopped("stopped while summing up rows");
    std::vector<float> key(static_cast<std::size_t>(dim_)), value(key);
    Sums sums(dim_);
    for (std::int64_t group = from; group < to; ++group) {
      const auto g = static_cast<std::size_t>(group);
      sums.clear();
      for (std::int64_t at = in_groups.begin(group); at < in_groups.begin(group + 1); ++at) {
        widen_key(rows.keys, in_groups.row(at), key.data());
        widen_key(rows.values, in_groups.row(at), value.data());
        sums.add(key.data(), value.data());
      }
      counts_[g] = static_cast<std::int32_t>(sums.count);
      if (sums.count == 0) continue;
      spreads_[g] = sums.give(&keys_[static_cast<std::size_t>(group * 2 * dim_)],
                              &values_[static_cast<std::size_t>(group * dim_)]);
    }
  });
}

KeyView RowSummaries::keys() const {
  return {reinterpret_cast<const std::byte*>(keys_.data()), DType::f32, groups(), 2 * dim_,
          8 * dim_};
}

KeyView RowSummaries::values() const {
  return {reinterpret_cast<const std::byte*>(values_.data()), DType::f32, groups(), dim_, 4 * dim_};
}

void RowSummaries::without(const RowsView& rows, std::int64_t group,
                           std::span<const std::int64_t> removed, GroupLess& out) const {
  out.count = count(group) - std::ssize(removed);
  if (out.count <= 0) return;
  const auto dim = static_cast<std::size_t>(dim_);
  const auto n = static_cast<double>(count(group));
  const float* keys = &keys_[static_cast<std::size_t>(group * 2 * dim_)];
  const float* values = &values_[static_cast<std::size_t>(group * dim_)];
  Sums less(dim_);
  std::vector<float> key(dim), value(dim);
  for (const std::int64_t row : removed) {
    widen_key(rows.keys, row, key.data());
    widen_key(rows.values, row, value.data());
    less.add(key.data(), value.data());
  }
  Sums rest(dim_);
  rest.count = out.count;
  for (std::size_t i = 0; i < dim; ++i) {
    const double mean = keys[i];
    rest.keys[i] = n * mean - less.keys[i];
    rest.squares[i] = n * (keys[dim + i] + mean * mean) - less.squares[i];
    rest.values[i] = n * values[i] - less.values[i];
  }
  out.keys.resize(2 * dim);
  out.value.resize(dim);
  rest.give(out.keys.data(), out.value.data());
}

std::int64_t RowSummaries::memory() const {
  return static_cast<std::int64_t>(counts_.capacity() * sizeof(counts_[0]) +
                                   (keys_.capacity() + values_.capacity() + spreads_.capacity()) *
                                       sizeof(float));
}

void RowSummaries::fields(const RowsView& rows, const Grouping& grouping, Archive& archive) {
  archive.value(dim_);
  archive.array(counts_);
  archive.array(keys_);
  archive.array(values_);
  archive.array(spreads_);
  if (!archive.reading()) return;
  archive.check(dim_ == rows.dim() && groups() == grouping.groups &&
                    std::ssize(keys_) == 2 * groups() * dim_ &&
                    std::ssize(values_) == groups() * dim_ && std::ssize(spreads_) == groups(),
                "its summaries do not belong to these groups");
  std::vector<std::int32_t> counts(counts_.size(), 0);
  for (std::int64_t row = 0; row < rows.count(); ++row)
    ++counts[static_cast<std::size_t>(grouping.of(row))];
  archive.check(counts == counts_, "a group has another number of rows");
  for (const float spread : spreads_) archive.check(spread >= 0, "a spread is below 0");
}

}  // namespace topkv
