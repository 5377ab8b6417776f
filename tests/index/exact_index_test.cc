// Exact search against a sort of all scores. Keys and queries are small whole numbers, so that
// scores are exact in whatever order products are added: positions, scores and the order of ties
// must be right to the last one.
#include <gtest/gtest.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "index/common/ranking.h"
#include "index/common/sample.h"
#include "src/core/math/convert.h"
#include "src/core/math/find_above_threshold.h"
#include "src/core/math/topk.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

constexpr std::int64_t exact_dim = 32;

struct ExactCase {
  std::vector<float> keys;     // [count, dim]
  std::vector<float> queries;  // [queries, dim]
  std::vector<PositionRange> allowed;

  std::int64_t count() const { return static_cast<std::int64_t>(keys.size()) / exact_dim; }
  float* key(std::int64_t i) { return keys.data() + i * exact_dim; }
  void set_key(std::int64_t i, float first) {
    std::fill_n(key(i), exact_dim, 0.0F);
    *key(i) = first;
  }
};

/// Keys of whole numbers from -size to size.
ExactCase random_case(std::int64_t count, std::int64_t queries, int size, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> number(-size, size);
  ExactCase c;
  c.keys.resize(static_cast<std::size_t>(count * exact_dim));
  for (float& x : c.keys) x = static_cast<float>(number(random));
  c.queries.resize(static_cast<std::size_t>(queries * exact_dim));
  for (float& x : c.queries) x = static_cast<float>(number(random));
  c.allowed.assign(static_cast<std::size_t>(queries), PositionRange{0, count});
  return c;
}

/// Keys whose score with every query is their first element.
ExactCase scores_case(std::int64_t count, std::int64_t queries) {
  ExactCase c;
  c.keys.resize(static_cast<std::size_t>(count * exact_dim));
  c.queries.assign(static_cast<std::size_t>(queries * exact_dim), 1.0F);
  c.allowed.assign(static_cast<std::size_t>(queries), PositionRange{0, count});
  return c;
}

SearchResult search(const ExactCase& c, std::int64_t k) {
  std::vector<std::byte> stored(c.keys.size() * 2);
  from_float(c.keys.data(), static_cast<std::int64_t>(c.keys.size()), DType::bf16, stored.data());
  const auto index = make_index("exact");
  index->add({stored.data(), DType::bf16, c.count(), exact_dim, 2 * exact_dim});
  index->build();
  SearchResult result;
  index->search(
      {c.queries.data(), static_cast<std::int64_t>(c.allowed.size()), exact_dim, c.allowed}, k,
      result);
  return result;
}

void expect_exact(const ExactCase& c, std::int64_t k) {
  const SearchResult result = search(c, k);
  for (std::size_t q = 0; q < c.allowed.size(); ++q) {
    std::vector<Scored> all;
    for (std::int64_t i = c.allowed[q].begin; i < c.allowed[q].end; ++i) {
      double score = 0;
      for (std::int64_t j = 0; j < exact_dim; ++j) {
        score += double{c.queries[q * exact_dim + static_cast<std::size_t>(j)]} *
                 c.keys[static_cast<std::size_t>(i * exact_dim + j)];
      }
      all.push_back({static_cast<float>(score), i});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    all.resize(std::min(all.size(), static_cast<std::size_t>(k)));
    const auto positions = result.positions(static_cast<std::int64_t>(q));
    const auto scores = result.scores(static_cast<std::int64_t>(q));
    ASSERT_EQ(positions.size(), all.size()) << "query " << q << ", k " << k;
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(positions[i], all[i].position) << "query " << q << ", k " << k << ", place " << i;
      ASSERT_EQ(scores[i], all[i].score) << "query " << q << ", k " << k << ", place " << i;
    }
  }
}

bool is_sampled(std::int64_t position) {
  const std::int64_t first = position / sample::spacing * sample::run;
  for (std::int64_t i = first; i < first + sample::run; ++i) {
    if (sample::position(i) == position) return true;
  }
  return false;
}

TEST(ExactSearch, EveryKIsExact) {
  const ExactCase c = random_case(20000, 7, 3, 1);
  for (const std::int64_t k : {1, 2, 64, 256, 1000, 4000, 6000, 10000, 19999, 20000, 30000}) {
    expect_exact(c, k);
  }
}

TEST(ExactSearch, EveryNumberOfQueriesIsExact) {
  for (std::int64_t queries = 1; queries <= 17; ++queries) {
    expect_exact(random_case(17000, queries, 3, 2), 100);
  }
}

TEST(ExactSearch, BestKeysThatAreAllInTheSampleDoNotHideOthers) {
  ExactCase c = scores_case(40000, 3);
  for (std::int64_t i = 0; i < c.count(); ++i) {
    c.set_key(i, static_cast<float>(i % 100 + (is_sampled(i) ? 100 : 0)));
  }
  // More than a threshold's rank of the sample, fewer than k keys.
  ASSERT_GT(sample::rank_for(2000, 40000 / 32), 0);
  for (const std::int64_t k : {64, 1000, 2000, 5000}) expect_exact(c, k);
}

TEST(ExactSearch, BestKeysThatAreAllOutsideTheSampleAreFound) {
  ExactCase c = scores_case(40000, 3);
  for (std::int64_t i = 0; i < c.count(); ++i) {
    c.set_key(i, static_cast<float>(i % 100 - (is_sampled(i) ? 100 : 0)));
  }
  for (const std::int64_t k : {64, 1000, 5000}) expect_exact(c, k);
}

TEST(ExactSearch, ScoresThatRiseOrFallWithThePositionAreExact) {
  for (const int sign : {-1, 1}) {
    ExactCase c = scores_case(32768, 2);
    for (std::int64_t i = 0; i < c.count(); ++i) {
      c.set_key(i, static_cast<float>(sign * (i / 256)));  // bf16 holds them exactly
    }
    for (const std::int64_t k : {64, 700, 3000}) expect_exact(c, k);
  }
}

TEST(ExactSearch, EqualScoresAroundTheThresholdAreTakenInOrderOfPosition) {
  expect_exact(scores_case(30000, 2), 500);  // all keys tie
  ExactCase c = scores_case(30000, 4);
  std::mt19937 random(3);
  for (std::int64_t i = 0; i < c.count(); ++i) {
    c.set_key(i, random() % 1000 < 3 ? 2.0F : static_cast<float>(random() % 2));
  }
  for (const std::int64_t k : {50, 100, 500, 2000, 7000}) expect_exact(c, k);
}

TEST(ExactSearch, RangesSmallerThanTheSampleStandBesideTheWhole) {
  ExactCase c = random_case(50000, 9, 3, 4);
  c.allowed = {{0, 50000}, {0, 0},         {17, 40},       {100, 100 + 16384}, {49000, 50000},
               {1, 49999}, {16383, 32769}, {25000, 25001}, {30000, 30700}};
  for (const std::int64_t k : {64, 700, 5000}) expect_exact(c, k);
}

TEST(ExactSearch, OneThreadAndManyFindTheSame) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  ExactCase c = random_case(40000, 7, 1, 6);
  for (float& x : c.keys) x = normal(random);
  for (float& x : c.queries) x = normal(random);
  oneapi::tbb::task_arena one(1);
  oneapi::tbb::task_arena many(8);
  for (const std::int64_t k : {64, 1000}) {
    SearchResult alone;
    SearchResult shared;
    one.execute([&] { alone = search(c, k); });
    many.execute([&] { shared = search(c, k); });
    for (std::int64_t q = 0; q < 7; ++q) {
      EXPECT_TRUE(std::ranges::equal(alone.positions(q), shared.positions(q))) << q;
      EXPECT_TRUE(std::ranges::equal(alone.scores(q), shared.scores(q))) << q;
    }
  }
}

TEST(Sample, TakesKeysOfItsRangeAscending) {
  for (const PositionRange range :
       {PositionRange{0, 100000}, PositionRange{1, 70001}, PositionRange{127, 128},
        PositionRange{5, 5}, PositionRange{129, 255}}) {
    const PositionRange sampled = sample::within(range);
    std::int64_t last = range.begin - 1;
    for (std::int64_t i = sampled.begin; i < sampled.end; ++i) {
      ASSERT_GT(sample::position(i), last);
      last = sample::position(i);
      ASSERT_LT(last, range.end);
    }
    EXPECT_LE(sampled.size() * 32, range.size());
    EXPECT_GE(sampled.size() * 32, range.size() - 2 * sample::spacing);
  }
}

TEST(FindAbove, EqualsPlainLoopsAtEveryLength) {
  std::mt19937 random(7);
  for (std::int64_t n = 0; n < 200; ++n) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    for (float& x : scores) x = static_cast<float>(random() % 5);
    if (n > 3) scores[3] = std::numeric_limits<float>::quiet_NaN();
    for (const float threshold : {-std::numeric_limits<float>::infinity(), 0.0F, 3.0F, 4.0F}) {
      std::vector<std::int32_t> found(static_cast<std::size_t>(n) + 1, -7);
      const std::int64_t size = find_above(scores.data(), n, threshold, found.data());
      std::vector<std::int32_t> want;
      for (std::int64_t i = 0; i < n; ++i) {
        if (scores[static_cast<std::size_t>(i)] > threshold) {
          want.push_back(static_cast<std::int32_t>(i));
        }
      }
      EXPECT_EQ(found.back(), -7) << "wrote past the end";
      found.resize(static_cast<std::size_t>(size));
      EXPECT_EQ(found, want);
    }
  }
}

TEST(Ranking, EqualsASortOfAnyNumberOfScores) {
  std::mt19937 random(8);
  Ranking ranking;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t n : {0, 1, 5, 511, 512, 3000}) {
    std::vector<Scored> all;
    for (std::int64_t i = 0; i < n; ++i) {
      const float choices[] = {0.0F,   -0.0F, infinity, -infinity,
                               1e-40F, -3.5F, 7.25F,    static_cast<float>(random())};
      all.push_back({choices[random() % 8], i});
    }
    std::shuffle(all.begin(), all.end(), random);
    std::vector<Scored> sorted = all;
    std::sort(sorted.begin(), sorted.end(), ranks_before);
    for (const std::int64_t k : {1, 3, 500, 1500, 4000}) {
      const auto best = ranking.best_first(all, k);
      ASSERT_EQ(static_cast<std::int64_t>(best.size()), std::min(k, n));
      for (std::size_t i = 0; i < best.size(); ++i) {
        ASSERT_EQ(best[i].position, sorted[i].position) << n << " scores, k " << k;
        ASSERT_EQ(best[i].score, sorted[i].score) << n << " scores, k " << k;
      }
    }
  }
}

}  // namespace
}  // namespace topkv
