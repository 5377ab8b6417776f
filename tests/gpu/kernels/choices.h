// Scores that are hard to choose among, and which of them are to be chosen.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gpu/entries/head_step_queries.h"

namespace test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Positions of the k best scores, of equal ones the first; what is no number comes last.
inline std::set<std::int64_t> best_of(const std::vector<double>& scores, std::int64_t k) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](std::int64_t i) {
    return std::isnan(scores[i]) ? -std::numeric_limits<double>::max() : scores[i];
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b]))
      return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return rank(a) > rank(b);
  });
  return {order.begin(), order.begin() + k};
}

/// Queries of which only the number matters.
inline topkv::gpu::HeadStepQueries shape_of(std::int64_t head_steps, std::int64_t group) {
  return {nullptr, head_steps, group, 64, 1.0F};
}

inline std::vector<float> nasty_scores(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> scores(static_cast<std::size_t>(count));
  for (float& score : scores) score = normal(random);
  const auto put = [&](float x, int of) {
    for (std::int64_t i = static_cast<std::int64_t>(seed) % of; i < count; i += of) scores[i] = x;
  };
  if (seed % 4 == 1) put(not_a_number, 3);
  if (seed % 4 == 2) put(1.5F, 2);  // as many ties
  if (seed % 4 == 3) {
    put(infinity, 97);
    put(-infinity, 5);
    put(-0.0F, 7);
  }
  return scores;
}

}  // namespace test
