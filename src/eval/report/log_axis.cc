#include "src/eval/report/log_axis.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace topkv {
namespace {

constexpr std::array<double, 3> steps = {1, 2, 5};

/// The n-th of …, 0.5, 1, 2, 5, 10, …; 1 is the 0-th.
double rung(int n) {
  const int decade = n >= 0 ? n / 3 : (n - 2) / 3;
  return steps[static_cast<std::size_t>(n - 3 * decade)] * std::pow(10.0, decade);
}

/// The last rung that is not above the value.
int rung_below(double value) {
  int n = 3 * static_cast<int>(std::floor(std::log10(value)));
  while (rung(n + 1) <= value) ++n;
  while (rung(n) > value) --n;
  return n;
}

}  // namespace

double LogAxis::at(double value) const { return std::log(value / low) / std::log(high / low); }

LogAxis decimal_axis(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, value);
  if (!(largest > 0)) largest = 1e-5;
  double least = largest;
  for (const double value : values) {
    if (value >= largest / most_range) least = std::min(least, value);
  }
  const int first = rung_below(least);
  const int below = rung_below(largest);
  const int last = std::max(first + 1, rung(below) < largest ? below + 1 : below);
  LogAxis axis{rung(first), rung(last), {}};
  const bool decades = last - first > 6;
  for (int n = first; n <= last; ++n) {
    if (!decades || n % 3 == 0) axis.ticks.push_back(rung(n));
  }
  return axis;
}

LogAxis binary_axis(std::span<const double> values) {
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  const int first = static_cast<int>(std::floor(std::log2(*least)));
  const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log2(*largest))));
  LogAxis axis{std::exp2(first), std::exp2(last), {}};
  const int step = (last - first + 6) / 7;
  for (int n = first; n <= last; n += step) axis.ticks.push_back(std::exp2(n));
  return axis;
}

}  // namespace topkv
