// Confidence intervals of 95 % for the mean of scores, and of differences between pairs of them.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace topkv {

struct Interval {
  double low = 0;
  double high = 0;
  std::string_view kind;  ///< "wilson" or "t"
};

/// Of scores that are all 0 or 1: Wilson's interval (Wilson 1927), which has a width where all are
/// alike, too. Of others: Student's t, within [0, most]; none for a single one and where all are
/// alike, which tells nothing of how they vary. REQUIRES: a score.
std::optional<Interval> mean_interval(std::span<const double> scores, double most);

/// Of differences of any size: Student's t; none likewise. REQUIRES: a difference.
std::optional<Interval> difference_interval(std::span<const double> differences);

}  // namespace topkv
