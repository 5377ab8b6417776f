#include "src/core/format/serde_number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace topkv {
namespace {

constexpr int last_power = 308;  // of ten that a double holds

/// The nearest double to 10^exponent, from 0 to last_power.
double power_of_ten(int exponent) {
  static const std::array<double, last_power + 1> powers = [] {
    std::array<double, last_power + 1> made{};
    for (int i = 0; i <= last_power; ++i) {
      made[static_cast<std::size_t>(i)] = std::strtod(("1e" + std::to_string(i)).c_str(), nullptr);
    }
    return made;
  }();
  return powers[static_cast<std::size_t>(exponent)];
}

}  // namespace

double serde_number(std::string_view text, double nearest) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  constexpr std::int64_t far = 1'000'000'000;
  std::uint64_t digits = 0;
  std::int64_t exponent = 0;
  bool full = false;  // digits that do not fit are left out
  bool fraction = false;
  std::size_t at = 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      fraction = true;
      full = false;  // a small digit may fit again
      continue;
    }
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;
    if (full) {
      if (!fraction) ++exponent;
      continue;
    }
    digits = digits * 10 + digit;
    if (fraction) --exponent;
  }
  if (at < text.size()) {
    std::string_view power = text.substr(at + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    std::int64_t more = 0;
    const auto read = std::from_chars(power.data(), power.data() + power.size(), more);
    if (read.ec != std::errc()) more = power.starts_with('-') ? -far : far;
    exponent += std::clamp(more, -far, far);
  }
  double value = static_cast<double>(digits);
  while (exponent < -last_power && value != 0) {
    value /= power_of_ten(last_power);
    exponent += last_power;
  }
  if (value != 0) {
    if (exponent > last_power) return nearest;
    value = exponent < 0 ? value / power_of_ten(static_cast<int>(-exponent))
                         : value * power_of_ten(static_cast<int>(exponent));
    if (!std::isfinite(value)) return nearest;
  }
  return negative ? -value : value;
}

}  // namespace topkv
