#include "src/core/math/random_draws.h"

#include <bit>
#include <cmath>

namespace topkv {

/// Floyd's algorithm (Bentley and Floyd 1987).
void draw_distinct(RandomDraws& draws, std::int64_t count, std::int64_t all,
                   std::vector<std::uint64_t>& marks, std::vector<std::int64_t>& drawn) {
  constexpr std::int64_t bits = 64;
  marks.assign(static_cast<std::size_t>((all + bits - 1) / bits), 0);
  const auto mark = [&](std::int64_t number) {
    std::uint64_t& word = marks[static_cast<std::size_t>(number / bits)];
    const std::uint64_t bit = std::uint64_t{1} << (number % bits);
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  };
  for (std::int64_t most = all - count; most < all; ++most) {
    if (!mark(draws.below(most + 1))) mark(most);
  }
  drawn.clear();
  for (std::size_t i = 0; i < marks.size(); ++i) {
    for (std::uint64_t word = marks[i]; word != 0; word &= word - 1)
      drawn.push_back(static_cast<std::int64_t>(i) * bits + std::countr_zero(word));
  }
}

/// By bisection of the complementary error function.
double normal_bound(double p) {
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double z = (low + high) / 2;
    (std::erfc(z / std::sqrt(2.0)) > p ? low : high) = z;
  }
  return high;
}

}  // namespace topkv
