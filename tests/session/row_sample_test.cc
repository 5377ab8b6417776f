// The sample of RetrievalOptions::guarantee, of one query: it is as large as the rule says, its
// estimates are unbiased, and its bound covers. Seeds are fixed; bounds of counts and means are
// those of the binomial and the normal distribution, with a chance below one in 10,000.
#include "src/session/row_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "src/core/math/random_draws.h"
#include "tests/support/reference.h"

namespace topkv {
namespace {

constexpr std::int64_t sample_dim = 8;

/// ScoredRows of one query whose scores are given: keys have them as their first element.
struct ScoredRows {
  ScoredRows(const std::vector<float>& scores, unsigned seed, float mean_value)
      : count(std::ssize(scores)), values(reference::random_floats(count * sample_dim, seed)) {
    keys.resize(values.size());
    for (std::int64_t i = 0; i < count; ++i)
      keys[static_cast<std::size_t>(i * sample_dim)] = scores[i];
    for (std::size_t i = 0; i < values.size(); i += sample_dim) values[i] += mean_value;
  }
  RowsView view() const { return {view_of(keys), view_of(values)}; }
  KeyView view_of(const std::vector<float>& rows) const {
    return {reinterpret_cast<const std::byte*>(rows.data()), DType::f32, count, sample_dim,
            sample_dim * std::int64_t{sizeof(float)}};
  }

  std::int64_t count;
  std::vector<float> keys, values;
  std::vector<float> query = {1, 0, 0, 0, 0, 0, 0, 0};
};

std::vector<float> normal_scores(std::int64_t count, unsigned seed, float deviation) {
  std::vector<float> scores = reference::random_floats(count, seed, deviation);
  return scores;
}

/// The sums N and D over rows [begin, end), in float64.
struct SampleSums {
  SampleSums() : values(sample_dim) {}
  double weight = 0;
  std::vector<double> values;

  void add(double w, const float* value) {
    weight += w;
    for (std::int64_t d = 0; d < sample_dim; ++d)
      values[static_cast<std::size_t>(d)] += w * value[d];
  }
  void add(const PartialView& part) { add(std::exp(*part.lse), part.out); }
  /// |N / D - other N / D| / |other N / D|
  double error(const SampleSums& dense) const {
    double off = 0;
    double size = 0;
    for (std::size_t d = 0; d < values.size(); ++d) {
      const double want = dense.values[d] / dense.weight;
      const double x = values[d] / weight - want;
      off += x * x;
      size += want * want;
    }
    return std::sqrt(off / size);
  }
};

SampleSums sample_sums(const ScoredRows& rows, std::int64_t begin, std::int64_t end) {
  SampleSums sums;
  for (std::int64_t i = begin; i < end; ++i) {
    sums.add(std::exp(static_cast<double>(rows.keys[static_cast<std::size_t>(i * sample_dim)])),
             &rows.values[static_cast<std::size_t>(i * sample_dim)]);
  }
  return sums;
}

/// The first `known` rows are attended, the others sampled.
struct SampleCase {
  SampleCase(ScoredRows of, std::int64_t known)
      : rows(std::move(of)), known(known), partial(1, sample_dim) {
    taken.resize(static_cast<std::size_t>(known));
    std::iota(taken.begin(), taken.end(), 0);
    if (known > 0) attend_rows(rows.query.data(), rows.view(), taken, 1, partial.view());
  }
  SampledRows sample(const Guarantee& bound, std::uint64_t seed, Partial& out) {
    out.reset(1, sample_dim);
    return attend_sample({.query = rows.query.data(),
                          .rows = rows.view(),
                          .range = {0, rows.count},
                          .taken = taken,
                          .seed = seed},
                         bound, partial.view(), out.view());
  }

  ScoredRows rows;
  std::int64_t known;
  std::vector<std::int64_t> taken;
  Partial partial;
};

TEST(RowSample, CoversAsOftenAsItSays) {
  constexpr std::int64_t trials = 300;
  constexpr std::int64_t count = 12000;
  for (const double delta : {0.05, 0.3}) {
    for (const float deviation : {0.1F, 1.0F, 1.5F}) {
      for (const std::int64_t known : {0, 500}) {
        SampleCase one({normal_scores(count, 7, deviation), 8, 3}, known);
        const SampleSums dense = sample_sums(one.rows, 0, count);
        std::int64_t off = 0;
        std::int64_t attended = 0;
        Partial out;
        for (std::int64_t seed = 0; seed < trials; ++seed) {
          attended += one.sample({0.2, delta}, static_cast<std::uint64_t>(seed), out).count;
          SampleSums got;
          if (known > 0) got.add(one.partial.view());
          got.add(out.view());
          off += got.error(dense) > 0.2 ? 1 : 0;
        }
        const double most = trials * delta + 4 * std::sqrt(trials * delta * (1 - delta));
        EXPECT_LE(static_cast<double>(off), most) << delta << " " << deviation << " " << known;
        EXPECT_LT(attended, trials * count * 2 / 3) << delta << " " << deviation << " " << known;
      }
    }
  }
}

/// Few rows hold half of the weight, have other values than the rest, and are mostly not known. A
/// first sample of 128 rows seldom has one of them.
TEST(RowSample, GrowsWhereTheFirstSampleMissesHeavyRows) {
  constexpr std::int64_t trials = 60;
  constexpr std::int64_t count = 20000;
  constexpr std::int64_t known = 16;
  std::vector<float> scores = normal_scores(count, 7, 0.2F);
  std::vector<std::int64_t> heavy(known);
  std::iota(heavy.begin(), heavy.end(), 0);
  for (std::int64_t i = 1; i <= 44; ++i) heavy.push_back(i * 450);
  for (const std::int64_t row : heavy) scores[static_cast<std::size_t>(row)] += 6.2F;
  ScoredRows rows(scores, 8, 2);
  for (const std::int64_t row : heavy) {
    for (std::int64_t d = 0; d < sample_dim; ++d)
      rows.values[static_cast<std::size_t>(row * sample_dim + d)] *= -3;
  }
  SampleCase one(rows, known);
  const SampleSums dense = sample_sums(one.rows, 0, count);
  std::int64_t off = 0;
  Partial out;
  for (std::int64_t seed = 0; seed < trials; ++seed) {
    one.sample({0.1, 0.05}, static_cast<std::uint64_t>(seed), out);
    SampleSums got;
    got.add(one.partial.view());
    got.add(out.view());
    off += got.error(dense) > 0.1 ? 1 : 0;
  }
  EXPECT_LE(static_cast<double>(off), trials * 0.05 + 4 * std::sqrt(trials * 0.05 * 0.95));
}

TEST(RowSample, SumsAreUnbiased) {
  constexpr std::int64_t trials = 2000;
  constexpr std::int64_t count = 6000;
  SampleCase one({normal_scores(count, 17, 1), 18, 3}, 100);
  const SampleSums want = sample_sums(one.rows, 100, count);
  std::vector<double> mean(sample_dim + 1), square(sample_dim + 1);
  Partial out;
  for (std::int64_t seed = 0; seed < trials; ++seed) {
    EXPECT_FALSE(one.sample({0.4, 0.3}, static_cast<std::uint64_t>(seed), out).all);
    SampleSums got;
    got.add(out.view());
    got.values.push_back(got.weight);
    for (std::size_t d = 0; d < mean.size(); ++d) {
      mean[d] += got.values[d] / trials;
      square[d] += got.values[d] * got.values[d] / trials;
    }
  }
  for (std::size_t d = 0; d < mean.size(); ++d) {
    const double truth = d < sample_dim ? want.values[d] : want.weight;
    const double deviation = std::sqrt((square[d] - mean[d] * mean[d]) / trials);
    EXPECT_NEAR(mean[d], truth, 4.5 * deviation) << d;
  }
}

/// With equal values the variance of both sums is that of the weights.
TEST(RowSample, IsAsLargeAsTheRuleSays) {
  constexpr std::int64_t count = 40000;
  std::vector<float> scores(count);
  for (std::int64_t i = 0; i < count; ++i) scores[i] = i % 2 == 0 ? 0.0F : std::log(3.0F);
  ScoredRows rows(scores, 1, 0);
  std::ranges::fill(rows.values, 1.0F);
  for (const double delta : {0.02, 0.2}) {
    // Weights 1 and 3: their mean is 2 and their variance 1.
    SampleCase one(rows, 0);
    const double e = 0.02 / 2.02;
    const double repeated = std::pow(normal_bound(delta / 2) / e / 2, 2);
    const std::int64_t first = std::max<std::int64_t>(128, count / 256);
    const double others = count - first;
    Partial out;
    const SampledRows sampled = one.sample({0.02, delta}, 3, out);
    EXPECT_FALSE(sampled.all);
    EXPECT_NEAR(sampled.count, first + repeated / (1 + repeated / others), 0.2 * sampled.count);
    // The rule does not see where half of the weight is known.
    SampleCase half(rows, count / 2);
    EXPECT_LT(half.sample({0.02, delta}, 3, out).count, 0.5 * sampled.count);
  }
}

TEST(RowSample, OfAllRowsIsExact) {
  for (const std::int64_t count : {0, 1, 100, 159, 161, 3000}) {
    for (const std::int64_t known : {0, 1, 70}) {
      if (known > count) continue;
      SampleCase one({normal_scores(count, 27, 2), 28, 0}, known);
      Partial out;
      const SampledRows sampled = one.sample({1e-6, 0.01}, 5, out);
      EXPECT_EQ(sampled.count, count - known);
      EXPECT_EQ(sampled.all, count > known);
      if (count == known) {
        EXPECT_EQ(*out.view().lse, empty_lse);
        continue;
      }
      SampleSums got;
      got.add(out.view());
      const SampleSums want = sample_sums(one.rows, known, count);
      EXPECT_NEAR(got.weight / want.weight, 1, 1e-5);
      EXPECT_LT(got.error(want), 1e-5);
    }
  }
}

TEST(RowSample, TakesAllRowsOfValuesThatCancel) {
  SampleCase one({normal_scores(5000, 37, 1), 38, 0}, 0);
  Partial out;
  EXPECT_TRUE(one.sample({0.1, 0.05}, 1, out).all);
}

TEST(RowSample, BearsHostileScores) {
  for (const float size : {0.0F, 1e4F, -1e4F, 3e38F}) {
    for (const float known_score : {0.0F, 1e4F, -1e4F}) {
      std::vector<float> scores = normal_scores(3000, 47, 1);
      for (float& score : scores) score += size;
      scores[0] = known_score;
      SampleCase one({scores, 48, 1}, 1);
      Partial out;
      const SampledRows sampled = one.sample({0.1, 0.05}, 1, out);
      EXPECT_GT(sampled.count, 128);
      EXPECT_LE(sampled.count, 2999);
      for (const float x : out.out()) EXPECT_TRUE(std::isfinite(x)) << size << " " << known_score;
    }
  }
}

TEST(RandomDraws, EverySetOfDistinctNumbersIsEquallyLikely) {
  std::vector<std::int64_t> counts(1 << 6);
  std::vector<std::uint64_t> marks;
  std::vector<std::int64_t> drawn;
  RandomDraws draws(1);
  constexpr std::int64_t trials = 20000;
  for (std::int64_t i = 0; i < trials; ++i) {
    draw_distinct(draws, 3, 6, marks, drawn);
    ASSERT_EQ(drawn.size(), 3U);
    ASSERT_TRUE(std::ranges::is_sorted(drawn));
    std::size_t set = 0;
    for (const std::int64_t number : drawn) set |= std::size_t{1} << number;
    ++counts[set];
  }
  std::int64_t sets = 0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    ++sets;
    EXPECT_NEAR(static_cast<double>(count), trials / 20.0, 4.5 * std::sqrt(trials / 20.0));
  }
  EXPECT_EQ(sets, 20);
  draw_distinct(draws, 130, 130, marks, drawn);
  for (std::int64_t i = 0; i < 130; ++i) EXPECT_EQ(drawn[static_cast<std::size_t>(i)], i);
  draw_distinct(draws, 0, 130, marks, drawn);
  EXPECT_TRUE(drawn.empty());
}

TEST(RandomDraws, BoundsOfTheNormalDistribution) {
  EXPECT_NEAR(normal_bound(0.05), 1.959964, 1e-6);
  EXPECT_NEAR(normal_bound(0.01), 2.575829, 1e-6);
  EXPECT_NEAR(normal_bound(0.5), 0.674490, 1e-6);
}

}  // namespace
}  // namespace topkv
