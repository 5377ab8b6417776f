#include "src/eval/tasks/wonderwords.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "src/eval/tasks/wonderwords_text.h"

namespace topkv {
namespace {

/// REQUIRES: text lives as long as the program.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!line.empty()) lines.push_back(line);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::span<const std::string_view> wonder_adjectives() {
  static const std::vector<std::string_view> words = lines_of(wonder_adjectives_text);
  return words;
}

std::span<const std::string_view> wonder_nouns() {
  static const std::vector<std::string_view> words = lines_of(wonder_nouns_text);
  return words;
}

std::span<const std::string_view> wonder_words() {
  static const std::vector<std::string_view> words = [] {
    const std::vector<std::string_view> verbs = lines_of(wonder_verbs_text);
    std::set<std::string_view> all(verbs.begin(), verbs.end());
    all.insert(wonder_adjectives().begin(), wonder_adjectives().end());
    all.insert(wonder_nouns().begin(), wonder_nouns().end());
    return std::vector<std::string_view>(all.begin(), all.end());
  }();
  return words;
}

std::string random_wonder_key(Random& random) {
  const std::string_view adjective = random.pick(wonder_adjectives());
  return fmt::format("{}-{}", adjective, random.pick(wonder_nouns()));
}

}  // namespace topkv
