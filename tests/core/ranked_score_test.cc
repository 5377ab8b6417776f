#include "src/core/math/ranked_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace topkv {
namespace {

constexpr float none = -std::numeric_limits<float>::infinity();

/// By a sort.
void expect_ranks(const std::vector<float>& scores, const std::vector<std::int64_t>& ranks) {
  std::vector<float> sorted = scores;
  std::ranges::sort(sorted, std::greater());
  std::vector<float> room;
  for (const std::int64_t rank : ranks) {
    EXPECT_EQ(ranked_score(scores.data(), std::ssize(scores), rank, room),
              sorted[static_cast<std::size_t>(rank - 1)])
        << rank << " of " << scores.size();
  }
}

std::vector<std::int64_t> up_to(std::int64_t count) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 1; rank <= count; ++rank) ranks.push_back(rank);
  return ranks;
}

TEST(RankedScore, IsThatOfASortAtEveryLengthAndRank) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (std::int64_t n = 1; n < 80; ++n) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    for (float& x : scores) x = normal(random);
    expect_ranks(scores, up_to(n));
    for (float& x : scores) x = static_cast<float>(random() % 3);  // ties
    expect_ranks(scores, up_to(n));
  }
}

TEST(RankedScore, IsThatOfASortAmongMany) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> scores(20000);
  for (float& x : scores) x = normal(random) * 4 + 7;
  expect_ranks(scores, {1, 2, 8, 9, 100, 512, 4096, 19999, 20000});
  for (float& x : scores) x = 5;
  expect_ranks(scores, {1, 777, 20000});
}

TEST(RankedScore, TakesScoresOfAnySize) {
  std::mt19937 random(13);
  std::uniform_int_distribution<int> exponent(-149, 126);
  std::vector<float> scores(500);
  for (float& x : scores) x = std::ldexp(random() % 2 == 0 ? 1.5F : -1.25F, exponent(random));
  const float largest = std::numeric_limits<float>::max();
  scores[7] = largest;
  scores[8] = -largest;
  scores[9] = 0;
  expect_ranks(scores, up_to(500));
}

TEST(RankedScore, LeavesOutWhatIsNone) {
  std::mt19937 random(14);
  std::normal_distribution<float> normal;
  std::vector<float> scores(300);
  for (float& x : scores) x = random() % 4 == 0 ? none : normal(random);
  const std::int64_t some =
      count_from(scores.data(), std::ssize(scores), std::numeric_limits<float>::lowest());
  EXPECT_EQ(some, std::ranges::count_if(scores, [](float x) { return x > none; }));
  expect_ranks(scores, up_to(some));
}

TEST(RankedScore, CountsAsALoopDoes) {
  std::mt19937 random(15);
  for (std::int64_t n = 0; n < 100; ++n) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    for (float& x : scores) x = static_cast<float>(random() % 5);
    for (const float least : {none, 0.0F, 3.0F, 4.0F, 9.0F}) {
      EXPECT_EQ(count_from(scores.data(), n, least),
                std::ranges::count_if(scores, [&](float x) { return x >= least; }));
    }
  }
}

}  // namespace
}  // namespace topkv
