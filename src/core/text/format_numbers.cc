#include "src/core/text/format_numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace topkv {

std::string format_count(std::int64_t count) {
  constexpr std::int64_t ki = 1024;
  if (count >= ki * ki && count % (ki * ki) == 0) return fmt::format("{}M", count / (ki * ki));
  if (count >= ki && count % ki == 0) return fmt::format("{}K", count / ki);
  return fmt::format("{}", count);
}

std::string format_grouped(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string format_seconds(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
}

std::string format_rate(double per_second) {
  if (!(per_second > 0) || !std::isfinite(per_second)) return "-";
  if (per_second < 1) return fmt::format("{:.2f}", per_second);
  if (per_second < 99.95) return fmt::format("{:.1f}", per_second);
  return format_grouped(std::llround(per_second));
}

std::string format_percent(double percent) { return fmt::format("{:.4g}", percent); }

}  // namespace topkv
