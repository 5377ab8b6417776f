// Word lists and the random source of the built-in texts. The same seed gives the same text on
// every machine.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace topkv {

/// mt19937_64, whose output the standard fixes (its distributions are not fixed, so none is used).
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }
  /// Uniform in [low, high]; the bias of taking a remainder is below 2^-32 for our ranges.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::string_view pick(std::span<const std::string_view> words) {
    return words[static_cast<std::size_t>(bits() % words.size())];
  }

 private:
  std::mt19937_64 engine_;
};

std::span<const std::string_view> adjectives();
std::span<const std::string_view> nouns();
/// Names of invented towns.
std::span<const std::string_view> towns();

/// "adjective-noun", as RULER makes keys and word values.
std::string random_adjective_noun(Random& random);

/// One sentence of an invented essay: plain English grammar, no sense, some numbers below 2000,
/// no colon and no "magic". Without surrounding spaces.
std::string random_sentence(Random& random);

}  // namespace topkv
