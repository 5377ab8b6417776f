#include "src/eval/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "topkv/error.h"

namespace topkv {
namespace {

/// Words that stand in both lists stand here once.
const std::vector<std::string_view>& single_words() {
  static const std::vector<std::string_view> words = [] {
    std::set<std::string_view> all(adjectives().begin(), adjectives().end());
    all.insert(nouns().begin(), nouns().end());
    return std::vector<std::string_view>(all.begin(), all.end());
  }();
  return words;
}

/// The number-th word with so many adjectives.
std::string compound(std::int64_t number, int adjective_count) {
  const auto noun_count = static_cast<std::int64_t>(nouns().size());
  const auto choices = static_cast<std::int64_t>(adjectives().size());
  std::string word(nouns()[static_cast<std::size_t>(number % noun_count)]);
  number /= noun_count;
  for (int i = 0; i < adjective_count; ++i, number /= choices) {
    word = fmt::format("{}-{}", adjectives()[static_cast<std::size_t>(number % choices)], word);
  }
  return word;
}

}  // namespace

std::vector<std::int64_t> draw(Random& random, std::int64_t range, std::int64_t count) {
  std::unordered_set<std::int64_t> taken;
  std::vector<std::int64_t> drawn;
  drawn.reserve(static_cast<std::size_t>(count));
  for (std::int64_t last = range - count; last < range; ++last) {
    const std::int64_t number = random.between(0, last);
    drawn.push_back(taken.insert(number).second ? number : last);
    taken.insert(drawn.back());
  }
  shuffle(random, drawn);
  return drawn;
}

std::vector<std::string> draw_words(Random& random, std::int64_t count) {
  std::vector<std::string> words;
  const auto single = static_cast<std::int64_t>(single_words().size());
  if (count <= single / 2) {
    for (const std::int64_t number : draw(random, single, count)) {
      words.emplace_back(single_words()[static_cast<std::size_t>(number)]);
    }
    return words;
  }
  const auto choices = static_cast<std::int64_t>(adjectives().size());
  const std::int64_t pairs = choices * static_cast<std::int64_t>(nouns().size());
  const int adjective_count = count <= pairs / 2 ? 1 : 2;
  const std::int64_t range = adjective_count == 1 ? pairs : pairs * choices;
  if (count > range) {
    throw InvalidArgument(fmt::format(
        "{} different words are needed and the built-in lists make {}; use a shorter length", count,
        range));
  }
  for (const std::int64_t number : draw(random, range, count)) {
    words.push_back(compound(number, adjective_count));
  }
  return words;
}

}  // namespace topkv
