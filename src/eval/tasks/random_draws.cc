#include "src/eval/tasks/random_draws.h"

#include <fmt/format.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "src/eval/tasks/wonderwords.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// The number-th "adjective-noun".
std::string pair(std::int64_t number) {
  const auto noun_count = std::ssize(wonder_nouns());
  return fmt::format("{}-{}", wonder_adjectives()[static_cast<std::size_t>(number / noun_count)],
                     wonder_nouns()[static_cast<std::size_t>(number % noun_count)]);
}

/// The first `count` of the numbers below `range` in a random order: Fisher-Yates, of which only
/// the places that something was moved to are kept.
std::vector<std::int64_t> first_of_shuffled(Random& random, std::int64_t range,
                                            std::int64_t count) {
  std::unordered_map<std::int64_t, std::int64_t> moved;
  const auto at = [&](std::int64_t place) {
    const auto found = moved.find(place);
    return found == moved.end() ? place : found->second;
  };
  std::vector<std::int64_t> first;
  first.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = random.between(i, range - 1);
    first.push_back(at(place));
    moved[place] = at(i);
  }
  return first;
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
  const std::int64_t singles = std::ssize(wonder_words());
  const bool single = count <= singles;
  const std::int64_t range =
      single ? singles : std::ssize(wonder_adjectives()) * std::ssize(wonder_nouns());
  if (count > range) {
    throw InvalidArgument(fmt::format(
        "{} different words are needed and the built-in lists make {}; use a shorter length", count,
        range));
  }
  std::vector<std::string> words;
  for (const std::int64_t number : first_of_shuffled(random, range, count)) {
    words.push_back(single ? std::string(wonder_words()[static_cast<std::size_t>(number)])
                           : pair(number));
  }
  return words;
}

}  // namespace topkv
