// CPython, Lib/difflib.py: SequenceMatcher.

#include "src/eval/tasks/sequence_ratio.h"

#include <cstddef>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/core/text/utf8.h"

namespace topkv {
namespace {

constexpr std::size_t least_popular = 200;  ///< characters of b from which autojunk counts

std::u32string code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char one = first_utf8_char(text);
    points.push_back(one.code_point);
    text.remove_prefix(one.bytes);
  }
  return points;
}

struct Block {
  std::size_t in_a = 0;
  std::size_t in_b = 0;
  std::size_t size = 0;
};

/// Parts of both texts, each from its begin up to its end.
struct Parts {
  std::size_t a_begin, a_end, b_begin, b_end;
};

class Matcher {
 public:
  Matcher(std::u32string a, std::u32string b) : a_(std::move(a)), b_(std::move(b)) {
    for (std::size_t j = 0; j < b_.size(); ++j) places_[b_[j]].push_back(j);
    if (b_.size() >= least_popular) {
      const std::size_t most = b_.size() / 100 + 1;
      std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > most; });
    }
    for (auto& lengths : lengths_) lengths.resize(b_.size());
  }

  /// Characters in matching blocks.
  std::size_t matches() {
    std::size_t count = 0;
    std::vector<Parts> left = {{0, a_.size(), 0, b_.size()}};
    while (!left.empty()) {
      const Parts parts = left.back();
      left.pop_back();
      const Block block = longest(parts);
      if (block.size == 0) continue;
      count += block.size;
      if (parts.a_begin < block.in_a && parts.b_begin < block.in_b) {
        left.push_back({parts.a_begin, block.in_a, parts.b_begin, block.in_b});
      }
      const std::size_t a_next = block.in_a + block.size;
      const std::size_t b_next = block.in_b + block.size;
      if (a_next < parts.a_end && b_next < parts.b_end) {
        left.push_back({a_next, parts.a_end, b_next, parts.b_end});
      }
    }
    return count;
  }

 private:
  /// The longest block of listed characters, of several the first in a and then in b; then as far
  /// to both sides as the texts are equal.
  Block longest(const Parts& parts) {
    Block best{parts.a_begin, parts.b_begin, 0};
    for (std::size_t i = parts.a_begin; i < parts.a_end; ++i) {
      ++row_;
      const auto at = places_.find(a_[i]);
      if (at == places_.end()) continue;
      for (const std::size_t j : at->second) {
        if (j < parts.b_begin) continue;
        if (j >= parts.b_end) break;
        // A block that ends with a[i - 1] and b[j - 1] goes on with these two.
        Length& length = lengths_[row_ % 2][j];
        length = {row_, 1};
        if (j > parts.b_begin && i > parts.a_begin) {
          const Length& before = lengths_[(row_ - 1) % 2][j - 1];
          if (before.row == row_ - 1) length.size += before.size;
        }
        if (length.size > best.size) {
          best = {i + 1 - length.size, j + 1 - length.size, length.size};
        }
      }
    }
    while (best.in_a > parts.a_begin && best.in_b > parts.b_begin &&
           a_[best.in_a - 1] == b_[best.in_b - 1]) {
      best = {best.in_a - 1, best.in_b - 1, best.size + 1};
    }
    while (best.in_a + best.size < parts.a_end && best.in_b + best.size < parts.b_end &&
           a_[best.in_a + best.size] == b_[best.in_b + best.size]) {
      ++best.size;
    }
    return best;
  }

  /// Of a block that ends with the character `row` of a: another row's says nothing.
  struct Length {
    std::size_t row = 0;
    std::size_t size = 0;
  };

  std::u32string a_;
  std::u32string b_;
  std::unordered_map<char32_t, std::vector<std::size_t>> places_;  ///< in b, but of popular ones
  std::vector<Length> lengths_[2];  ///< by the place in b, of even and odd rows
  std::size_t row_ = 0;             ///< counts characters of a over all searches
};

}  // namespace

double sequence_ratio(std::string_view a, std::string_view b) {
  std::u32string first = code_points(a);
  std::u32string second = code_points(b);
  const std::size_t both = first.size() + second.size();
  if (both == 0) return 1;
  Matcher matcher(std::move(first), std::move(second));
  return 2.0 * static_cast<double>(matcher.matches()) / static_cast<double>(both);
}

}  // namespace topkv
