// Draws of a seeded generator, and bounds of the normal distribution, for estimates from samples.
#pragma once

#include <cstdint>
#include <vector>

namespace topkv {

/// SplitMix64 (Steele et al. 2014).
class RandomDraws {
 public:
  explicit RandomDraws(std::uint64_t seed) : state_(seed) {}

  /// Returns 64 random bits.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Returns a number from 0 to count - 1.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(count));
  }

 private:
  std::uint64_t state_;
};

/// Sets `drawn` to `count` different numbers below `all`, ascending. Each set of `count` numbers is
/// equally likely. marks: working memory.
/// REQUIRES: count is at most all.
void draw_distinct(RandomDraws& draws, std::int64_t count, std::int64_t all,
                   std::vector<std::uint64_t>& marks, std::vector<std::int64_t>& drawn);

/// Returns the z with P(|N(0, 1)| > z) = p. p: above 0 and below 1; z is at most 10.
double normal_bound(double p);

}  // namespace topkv
