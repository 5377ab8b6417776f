#include "src/cli/terminal/parse_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/core/text/byte_text.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t least_bytes = std::int64_t{1} << 20;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Reads a plain decimal number off the front of text.
bool take_number(std::string_view& text, double& value) {
  if (text.empty() || !(text.front() == '.' || (text.front() >= '0' && text.front() <= '9'))) {
    return false;
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

// base^n for "K", "M", "G", "T"; 0 for anything else.
double power(double base, char unit) {
  switch (unit) {
    case 'k':
    case 'K':
      return base;
    case 'm':
    case 'M':
      return base * base;
    case 'g':
    case 'G':
      return base * base * base;
    case 't':
    case 'T':
      return base * base * base * base;
    default:
      return 0;
  }
}

// 1024^n for "", "K"/"Ki", "M"/"Mi", "G"/"Gi", "T"/"Ti"; 0 for anything else.
double binary_factor(std::string_view unit) {
  if (unit.empty()) return 1;
  if (unit.size() > 2 || (unit.size() == 2 && unit[1] != 'i')) return 0;
  return power(1024, unit[0]);
}

// 1000^n for "KB", "MB", "GB", "TB"; all else as of counts, with a "B" behind it or without.
double byte_factor(std::string_view unit) {
  const bool has_b = !unit.empty() && (unit.back() == 'B' || unit.back() == 'b');
  if (has_b) unit.remove_suffix(1);
  return has_b && unit.size() == 1 ? power(1000, unit[0]) : binary_factor(unit);
}

[[noreturn]] void refuse(std::string_view flag, std::string_view expected, std::string_view text) {
  throw UsageError(fmt::format("{}: expected {}, found '{}'", flag, expected, text));
}

// The number at the head of text times what the unit behind it stands for, 0 for none.
std::int64_t scaled(std::string_view flag, std::string_view text, std::string_view unit,
                    double value, double factor, std::string_view expected) {
  const double exact = value * factor;
  if (factor == 0) {
    refuse(flag, fmt::format("{}; '{}' is not a unit", expected, unit), text);
  }
  if (exact >= static_cast<double>(most_count)) {
    refuse(flag, fmt::format("{} below 2^62", expected), text);
  }
  if (exact != std::floor(exact)) refuse(flag, fmt::format("{}, a whole number", expected), text);
  return static_cast<std::int64_t>(exact);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::int64_t parse_count(std::string_view flag, std::string_view text, std::int64_t least,
                         std::int64_t most) {
  constexpr std::string_view expected = "a count such as 4096, 128K or 1M";
  std::string_view rest = trimmed(text);
  double value = 0;
  if (!take_number(rest, value)) refuse(flag, expected, text);
  const std::int64_t count = scaled(flag, text, rest, value, binary_factor(rest), expected);
  if (count < least || count > most) {
    refuse(flag,
           most == most_count ? fmt::format("{} or more", least)
                              : fmt::format("{} to {}", least, most),
           text);
  }
  return count;
}

std::int64_t parse_bytes(std::string_view flag, std::string_view text) {
  constexpr std::string_view expected = "a size of 1 MiB or more such as 512MiB or 8GiB";
  std::string_view rest = trimmed(text);
  double value = 0;
  if (!take_number(rest, value)) refuse(flag, expected, text);
  rest = trimmed(rest);
  const std::int64_t bytes = scaled(flag, text, rest, value, byte_factor(rest), expected);
  if (bytes < least_bytes) {
    throw UsageError(fmt::format("{}: expected {}, found '{}', which is {}", flag, expected, text,
                                 exact_byte_text(bytes)));
  }
  return bytes;
}

double parse_real(std::string_view flag, std::string_view text, double least, double most,
                  bool above) {
  std::string_view rest = trimmed(text);
  double value = 0;
  const bool number = take_number(rest, value) && rest.empty();
  if (!number || value < least || value > most || (above && value == least)) {
    refuse(flag, range_text(least, most, above), text);
  }
  return value;
}

std::string range_text(double least, double most, bool above) {
  return above ? fmt::format("a number above {:g} and up to {:g}", least, most)
               : fmt::format("a number from {:g} to {:g}", least, most);
}

std::uint64_t parse_seed(std::string_view flag, std::string_view text) {
  const std::string_view digits = trimmed(text);
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    refuse(flag, "a whole number from 0 to 18446744073709551615", text);
  }
  return seed;
}

std::vector<std::int64_t> parse_counts(std::string_view flag, std::string_view text) {
  std::vector<std::int64_t> counts;
  for (const std::string_view part : split(text)) {
    const std::int64_t count = parse_count(flag, part);
    if (std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

std::vector<double> parse_depths(std::string_view flag, std::string_view text) {
  const std::string_view all = trimmed(text);
  std::vector<double> depths;
  if (all.find_first_of(",.%") == std::string_view::npos) {
    const std::int64_t count = parse_count(flag, all, 1, 1000);
    for (std::int64_t i = 0; i < count; ++i) {
      depths.push_back(100.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(count));
    }
    return depths;
  }
  for (std::string_view part : split(all)) {
    double depth = 0;
    std::string_view rest = part;
    const bool number = take_number(rest, depth);
    if (!number || !(rest.empty() || rest == "%") || depth < 0 || depth > 100) {
      throw UsageError(
          fmt::format("{}: expected a number of depths such as 10, or percentages from 0 to 100 "
                      "such as 5,50,95; found '{}'",
                      flag, part));
    }
    depths.push_back(depth);
  }
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  return depths;
}

}  // namespace topkv::cli
