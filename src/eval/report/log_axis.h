// The range and the ticks of a logarithmic axis. Pure functions.
#pragma once

#include <span>
#include <vector>

namespace topkv {

/// low < high, both positive; ticks ascend and lie within.
struct LogAxis {
  double low = 0;
  double high = 0;
  std::vector<double> ticks;

  /// 0 at low, 1 at high. REQUIRES: value > 0.
  double at(double value) const;
};

/// Of the values that a decimal axis covers, at most: largest / smallest.
inline constexpr double most_range = 1e6;

/// From 1, 2 or 5 times a power of ten to another. Covers all values but those that are not
/// positive, or below the largest / most_range.
LogAxis decimal_axis(std::span<const double> values);

/// From a power of two to another. REQUIRES: a value, all of them positive.
LogAxis binary_axis(std::span<const double> values);

}  // namespace topkv
