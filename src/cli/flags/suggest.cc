#include "src/cli/flags/suggest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace topkv::cli {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i - 1, i and i + 1 of the table of distances between prefixes.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::vector<std::size_t> next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    next[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = row[j] + (a[i] == b[j] ? 0 : 1);
      next[j + 1] = std::min({substituted, next[j] + 1, row[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
      }
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row.back();
}

std::string nearest(std::string_view typed, std::span<const std::string> known) {
  constexpr std::size_t longest = 64;  // nobody mistypes more; keeps hostile arguments cheap
  if (typed.size() > longest) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& word : known) {
    const std::size_t distance = edit_distance(typed, word);
    if (distance < best_distance) {
      best_distance = distance;
      best = word;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& near) {
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace topkv::cli
