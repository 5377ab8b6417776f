// Codes of keys, against float64: scores are those of the keys that codes stand for, within the
// rounding of the tables; and these keys are as near to the real ones as theory says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "index/key_codes.h"
#include "index/principal_axes.h"
#include "src/core/convert.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

/// Keys whose variance falls by `falls` from axis to axis, the axes turned into each other.
std::vector<float> turned_keys(std::int64_t count, std::int64_t dim, double falls, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<std::size_t>(count * dim));
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = keys.data() + i * dim;
    double size = 1;
    for (std::int64_t j = 0; j < dim; ++j, size *= falls) {
      key[j] = normal(random) * static_cast<float>(size);
    }
    // Plane rotations by fixed angles, and a mean.
    for (std::int64_t j = 0; j + 1 < dim; ++j) {
      const float c = std::cos(0.3F * static_cast<float>(j + 1));
      const float s = std::sin(0.3F * static_cast<float>(j + 1));
      const float a = key[j];
      const float b = key[j + 1];
      key[j] = c * a - s * b;
      key[j + 1] = s * a + c * b;
    }
    key[0] += 0.7F;
  }
  return keys;
}

KeyView view_of(const std::vector<float>& keys, std::int64_t dim) {
  return {reinterpret_cast<const std::byte*>(keys.data()), DType::f32,
          static_cast<std::int64_t>(keys.size()) / dim, dim, dim * 4};
}

struct Coded {
  KeyCoder coder;
  std::vector<std::uint8_t> codes;
  std::vector<float> residuals;

  Coded(const KeyView& keys, std::int64_t bytes) : coder(keys, bytes) {
    codes.resize(static_cast<std::size_t>(coder.bytes_for(keys.count)));
    residuals.resize(static_cast<std::size_t>(keys.count));
    // In pieces, as when keys arrive.
    const std::int64_t half = keys.count / 2;
    coder.encode(keys, 0, half, codes.data(), residuals.data());
    coder.encode(keys, half, keys.count - half, codes.data(), residuals.data() + half);
  }

  std::vector<float> decode(std::int64_t key, std::int64_t dim) const {
    std::vector<float> out(static_cast<std::size_t>(dim));
    coder.decode(codes.data(), key, out.data());
    return out;
  }

  std::vector<float> scores(const std::vector<float>& query, CodeTables& tables) const {
    coder.make_tables(query.data(), tables);
    const auto count = std::ssize(residuals);
    std::vector<float> out(residuals.size());
    const std::int64_t first = std::min<std::int64_t>(count, 3 * code_block);
    score_codes(codes.data(), coder.bytes(), tables, 0, first, out.data());
    score_codes(codes.data(), coder.bytes(), tables, first, count - first, out.data() + first);
    return out;
  }
};

std::vector<float> some_query(std::int64_t dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<std::size_t>(dim));
  for (float& x : q) x = normal(random);
  return q;
}

TEST(KeyCodes, ScoresAreThoseOfTheKeysThatCodesStandFor) {
  for (const std::int64_t dim : {1, 7, 64, 80, 128, 256}) {
    for (const std::int64_t bytes : {4, 16, 32}) {
      const std::int64_t count = 700;
      const auto keys = turned_keys(count, dim, 0.95, 3);
      const Coded coded(view_of(keys, dim), bytes);
      EXPECT_LE(coded.coder.bytes(), bytes);
      const auto q = some_query(dim, 5);
      CodeTables tables;
      const std::vector<float> scores = coded.scores(q, tables);
      const double rounding = static_cast<double>(coded.coder.bytes()) * tables.step;
      for (const std::int64_t i : {0, 1, 63, 64, 191, 192, 349, 350, 699}) {
        const auto key = coded.decode(i, dim);
        double score = 0;
        double size = 0;
        double residual = 0;
        for (std::int64_t j = 0; j < dim; ++j) {
          const auto at = static_cast<std::size_t>(j);
          score += static_cast<double>(q[at]) * key[at];
          size += std::abs(static_cast<double>(q[at]) * key[at]);
          const double off =
              static_cast<double>(keys[static_cast<std::size_t>(i * dim + j)]) - key[at];
          residual += off * off;
        }
        const auto at = static_cast<std::size_t>(i);
        EXPECT_NEAR(scores[at], score, rounding + 1e-5 * (size + 1)) << dim << " " << bytes;
        EXPECT_NEAR(coded.residuals[at], residual, 1e-4 * (1 + residual)) << dim << " " << i;
      }
    }
  }
}

TEST(KeyCodes, ErrorsAreAsLargeAsTheySayAndAverageOut) {
  const std::int64_t dim = 64;
  const std::int64_t count = 20000;
  for (const double falls : {1.0, 0.95, 0.8}) {
    const auto keys = turned_keys(count, dim, falls, 11);
    double before = 1e30;
    for (const std::int64_t bytes : {4, 8, 16, 32}) {
      const Coded coded(view_of(keys, dim), bytes);
      const auto q = some_query(dim, 7);
      CodeTables tables;
      const std::vector<float> scores = coded.scores(q, tables);
      double sum = 0;
      double squares = 0;
      double mean_score = 0;
      double score_squares = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        double score = 0;
        for (std::int64_t j = 0; j < dim; ++j) {
          score += static_cast<double>(q[static_cast<std::size_t>(j)]) *
                   keys[static_cast<std::size_t>(i * dim + j)];
        }
        const double off = scores[static_cast<std::size_t>(i)] - score;
        sum += off;
        squares += off * off;
        mean_score += score;
        score_squares += score * score;
      }
      const double n = static_cast<double>(count);
      const double variance = score_squares / n - mean_score / n * (mean_score / n);
      const double expected = coded.coder.error_variance(q.data());
      // Of the entries of the tables, each off by up to half a step, the same for all keys that
      // have it: a standard deviation of step / sqrt(12) for each nibble.
      const double rounding =
          tables.step * std::sqrt(2 * static_cast<double>(coded.coder.bytes()) / 12);
      EXPECT_NEAR(squares / n, expected, 0.1 * expected + 1e-4 * variance + 9 * rounding * rounding)
          << falls << " " << bytes;
      EXPECT_LT(std::abs(sum / n),
                4 * std::sqrt(expected / n) + 0.01 * std::sqrt(variance) + 4 * rounding);
      EXPECT_LT(rounding, 0.06 * std::sqrt(variance));
      EXPECT_LT(expected, before) << "more bytes, and no less error";
      before = expected;
      // Reverse water-filling of normal variables at 2 bits a dim leaves 0.1175 of a flat spectrum.
      if (falls == 1.0 && bytes == 16) {
        EXPECT_NEAR(squares / n / variance, 0.1175, 0.02);
      }
      if (falls == 0.8 && bytes == 16) {
        EXPECT_LT(squares / n / variance, 0.02);
      }
    }
  }
}

TEST(KeyCodes, KeysThatAreFewEqualHugeOrTinyAreCoded) {
  const std::int64_t dim = 24;
  for (const float size : {1.0F, 1e19F, 3e38F, 1e-38F, 0.0F}) {
    for (const std::int64_t count : {1, 2, 17, 300}) {
      for (const bool equal : {false, true}) {
        auto keys = turned_keys(count, dim, 0.9, 2);
        if (equal) {
          for (std::size_t i = dim; i < keys.size(); ++i) keys[i] = keys[i % dim];
        }
        const float most = std::abs(*std::max_element(
            keys.begin(), keys.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
        for (float& x : keys) x = x / most * size;
        const Coded coded(view_of(keys, dim), 16);
        const auto key = coded.decode(0, dim);
        for (std::int64_t j = 0; equal && j < dim; ++j) {
          const auto at = static_cast<std::size_t>(j);
          EXPECT_NEAR(key[at], keys[at], 1e-5 * static_cast<double>(size)) << size;
        }
        for (const float residual : coded.residuals) EXPECT_FALSE(std::isnan(residual)) << size;
      }
    }
  }
}

TEST(KeyCodes, KeysThatAreNotFiniteAreRefused) {
  auto keys = turned_keys(100, 16, 0.9, 2);
  keys[37] = std::nanf("");
  const KeyView view = view_of(keys, 16);
  EXPECT_THROW(KeyCoder(view, 16), InvalidArgument);
}

TEST(PrincipalAxes, AreOrthonormalAndGiveTheMatrixBack) {
  const std::int64_t n = 40;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> matrix(static_cast<std::size_t>(n * n), 0.0);
  for (int sample = 0; sample < 60; ++sample) {
    std::vector<double> x(static_cast<std::size_t>(n));
    for (double& v : x) v = normal(random);
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] += x[i / n] * x[i % n];
  }
  std::vector<double> axes = matrix;
  const std::vector<double> values = principal_axes(n, axes);
  EXPECT_TRUE(std::is_sorted(values.rbegin(), values.rend()));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double product = 0;
      double entry = 0;
      for (std::int64_t a = 0; a < n; ++a) {
        const auto row = static_cast<std::size_t>(a * n);
        product +=
            axes[static_cast<std::size_t>(i * n + a)] * axes[static_cast<std::size_t>(j * n + a)];
        entry += values[static_cast<std::size_t>(a)] * axes[row + static_cast<std::size_t>(i)] *
                 axes[row + static_cast<std::size_t>(j)];
      }
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 1e-10);
      EXPECT_NEAR(entry, matrix[static_cast<std::size_t>(i * n + j)], 1e-9 * values[0]);
    }
  }
}

TEST(CodesIndex, FindsRareKeysAmongThoseThatRepeat) {
  // A text of repeated sentences: 40 keys again and again, and a few that are like none of them.
  const std::int64_t dim = 64;
  const std::int64_t count = 40000;
  const auto few = turned_keys(40, dim, 0.9, 4);
  std::vector<float> keys(static_cast<std::size_t>(count * dim));
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = few[i % few.size()] + normal(random);
  }
  const auto needle = some_query(dim, 77);
  const std::vector<std::int64_t> places = {0, 1234, 20000, 39999};
  for (const std::int64_t place : places) {
    std::copy(needle.begin(), needle.end(), keys.begin() + place * dim);
  }
  const auto index = make_index("codes:k=4");
  index->add(view_of(keys, dim));
  index->build();
  const PositionRange all{0, count};
  SearchResult found;
  index->search({needle.data(), 1, dim, {&all, 1}}, 4, found);
  std::vector<std::int64_t> positions(found.positions(0).begin(), found.positions(0).end());
  EXPECT_EQ(positions, places);
}

}  // namespace
}  // namespace topkv
