#include "src/eval/run/confidence_interval.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace topkv {
namespace {

constexpr double z = 1.959963984540054;  // the normal distribution's 97.5 %

/// The 97.5 % quantile of Student's distribution with 1 to 10 degrees of freedom. Beyond, the first
/// terms of its expansion in 1 / degrees (Abramowitz & Stegun 26.7.5) are right to 0.0001.
constexpr std::array<double, 10> students = {12.70620, 4.30265, 3.18245, 2.77645, 2.57058,
                                             2.44691,  2.36462, 2.30600, 2.26216, 2.22814};

double student(std::size_t degrees) {
  if (degrees <= students.size()) return students[degrees - 1];
  const auto n = static_cast<double>(degrees);
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

Interval wilson(double share, double n) {
  const double middle = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half =
      z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half), "wilson"};
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::optional<Interval> mean_interval(std::span<const double> scores, double most) {
  if (most == 1 && std::ranges::all_of(scores, [](double x) { return x == 0 || x == 1; })) {
    return wilson(mean_of(scores), static_cast<double>(scores.size()));
  }
  std::optional<Interval> interval = difference_interval(scores);
  if (interval)
    interval = Interval{std::max(0.0, interval->low), std::min(most, interval->high), "t"};
  return interval;
}

std::optional<Interval> difference_interval(std::span<const double> differences) {
  if (std::ranges::count(differences, differences.front()) == std::ssize(differences)) return {};
  const auto n = static_cast<double>(differences.size());
  const double mean = mean_of(differences);
  double squares = 0;
  for (const double x : differences) squares += (x - mean) * (x - mean);
  const double half = student(differences.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return Interval{mean - half, mean + half, "t"};
}

}  // namespace topkv
