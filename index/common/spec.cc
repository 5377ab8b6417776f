#include "index/common/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::int64_t parse_count(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stop != end || value < 0) return -1;
  return value <= std::int64_t{1} << 31 ? value : -1;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

void parse_options(std::string_view spec, std::string_view text,
                   std::initializer_list<IntOption> options) {
  if (text.empty()) return;
  std::vector<std::string_view> seen;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const IntOption& o) { return o.key == key; });
    if (option == options.end() || equals == std::string_view::npos) {
      std::string known;
      for (const IntOption& o : options)
        known += fmt::format("{}{}=…", known.empty() ? "" : ", ", o.key);
      throw InvalidArgument(fmt::format("index \"{}\": unknown option \"{}\"; known are {}",
                                        one_line(spec), one_line(part), known));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      throw InvalidArgument(fmt::format("index \"{}\": option {} is given twice; expected once",
                                        one_line(spec), key));
    }
    seen.push_back(key);
    const std::string_view text_value = part.substr(equals + 1);
    const std::int64_t value = parse_count(text_value);
    if (value < option->min || value > option->max) {
      throw InvalidArgument(
          fmt::format("index \"{}\": {} is \"{}\"; it must be a whole number from {} to {}",
                      one_line(spec), key, one_line(text_value), option->min, option->max));
    }
    *option->value = value;
  }
}

std::string_view nearest(std::string_view typed, std::span<const std::string_view> known) {
  std::string_view best;
  // Half of a short name is another name.
  std::size_t best_distance = std::min<std::size_t>(3, typed.size() / 2 + 1);
  for (const std::string_view name : known) {
    if (typed.size() > name.size() + 2) continue;  // far, and cheap to see
    const std::size_t distance = edit_distance(typed, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string one_line(std::string_view text) { return printable_beginning(text); }

}  // namespace topkv
