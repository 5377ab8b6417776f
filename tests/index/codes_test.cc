// Codes of keys, against float64: scores are those of the keys that codes stand for, within the
// rounding of coefficients; and these keys are as near to the real ones as theory says. What
// linear() says of codes of keys and of values, read bit by bit, is what they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "index/codes/codes_index.h"
#include "index/codes/key_codes.h"
#include "index/codes/principal_axes.h"
#include "index/codes/value_codes.h"
#include "src/core/math/convert.h"
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

struct CodedKeys {
  KeyCoder coder;
  std::vector<std::uint8_t> codes;
  std::vector<float> residuals;

  CodedKeys(const KeyView& keys, std::int64_t bytes) : coder(keys, bytes) {
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

  /// The value of slot j of a key's code.
  int slot(std::int64_t key, std::int64_t j) const {
    const std::int64_t bytes = coder.bytes();
    const std::int64_t at = (key / code_block * bytes + j % bytes) * code_block + key % code_block;
    return codes[static_cast<std::size_t>(at)] >> (j / bytes * 2) & 3;
  }

  std::vector<float> scores(const std::vector<float>& query, SlotWeights& weights) const {
    coder.weigh_slots(query.data(), weights);
    const auto count = std::ssize(residuals);
    std::vector<float> out(residuals.size());
    const std::int64_t first = std::min<std::int64_t>(count, 3 * code_block);
    std::vector<float> highs(out.size());
    score_codes(codes.data(), coder.bytes(), {&weights, 1}, 0, first, out.data(), first,
                highs.data());
    score_codes(codes.data(), coder.bytes(), {&weights, 1}, first, count - first,
                out.data() + first, count, highs.data());
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

/// KeyCoder::linear.
struct Linear {
  std::vector<float> slots, middle, errors;

  Linear(const KeyCoder& coder, std::int64_t dim)
      : slots(static_cast<std::size_t>(4 * coder.bytes() * dim), std::nanf("")),
        middle(static_cast<std::size_t>(dim), std::nanf("")),
        errors(static_cast<std::size_t>(dim * dim), std::nanf("")) {
    coder.linear(slots.data(), middle.data(), errors.data());
  }
};

/// a·b, in float64; size grows by Σ |a_i b_i|.
double dot(const float* a, const float* b, std::int64_t dim, double* size = nullptr) {
  double sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const double product = static_cast<double>(a[i]) * b[i];
    sum += product;
    if (size != nullptr) *size += std::abs(product);
  }
  return sum;
}

TEST(KeyCodes, ScoresAreThoseOfTheKeysThatCodesStandFor) {
  for (const std::int64_t dim : {1, 7, 64, 80, 128, 256}) {
    for (const std::int64_t bytes : {4, 16, 32}) {
      const std::int64_t count = 700;
      const auto keys = turned_keys(count, dim, 0.95, 3);
      const CodedKeys coded(view_of(keys, dim), bytes);
      EXPECT_LE(coded.coder.bytes(), bytes);
      const auto q = some_query(dim, 5);
      SlotWeights weights;
      const std::vector<float> scores = coded.scores(q, weights);
      const double rounding = 3 * static_cast<double>(coded.coder.bytes()) * weights.step;
      for (const std::int64_t i : {0, 1, 63, 64, 191, 192, 349, 350, 699}) {
        const auto key = coded.decode(i, dim);
        double size = 0;
        const double score = dot(q.data(), key.data(), dim, &size);
        double residual = 0;
        for (std::int64_t j = 0; j < dim; ++j) {
          const double off = static_cast<double>(keys[static_cast<std::size_t>(i * dim + j)]) -
                             key[static_cast<std::size_t>(j)];
          residual += off * off;
        }
        const auto at = static_cast<std::size_t>(i);
        EXPECT_NEAR(scores[at], score, rounding + 1e-5 * (size + 1)) << dim << " " << bytes;
        EXPECT_NEAR(coded.residuals[at], residual, 1e-4 * (1 + residual)) << dim << " " << i;
      }
    }
  }
}

TEST(KeyCodes, LinearSaysWhatCodesStandFor) {
  const std::int64_t count = 200;
  for (const std::int64_t dim : {5, 64, 80, 128}) {
    for (const std::int64_t bytes : {8, 16, 32}) {
      const auto keys = turned_keys(count, dim, 0.95, 3);
      const CodedKeys coded(view_of(keys, dim), bytes);
      const Linear linear(coded.coder, dim);
      const auto q = some_query(dim, 5);
      for (const std::int64_t i : {0, 1, 63, 64, 100, 199}) {
        double size = 0;
        const double want = dot(q.data(), coded.decode(i, dim).data(), dim, &size);
        double score = dot(q.data(), linear.middle.data(), dim, &size);
        for (std::int64_t j = 0; j < 4 * coded.coder.bytes(); ++j) {
          const double weight = dot(q.data(), linear.slots.data() + j * dim, dim, &size);
          score += weight * (coded.slot(i, j) - 1.5);
        }
        // All are sums, in float32, of at most 2 * dim terms no larger than `size` together.
        EXPECT_NEAR(score, want, 1e-5 * size) << dim << " " << bytes << " key " << i;
      }
      double variance = 0;
      for (std::int64_t a = 0; a < dim; ++a) {
        variance += std::pow(dot(q.data(), linear.errors.data() + a * dim, dim), 2);
      }
      EXPECT_NEAR(variance / coded.coder.error_variance(q.data()), 1, 1e-4) << dim << " " << bytes;
    }
  }
}

TEST(KeyCodes, SlotsOfTheLargestWeightLieInTheHighestFields) {
  for (const std::int64_t dim : {5, 64, 128}) {
    for (const double falls : {1.0, 0.95, 0.8}) {
      const auto keys = turned_keys(500, dim, falls, 3);
      const CodedKeys coded(view_of(keys, dim), 16);
      const Linear linear(coded.coder, dim);
      const std::int64_t bytes = coded.coder.bytes();
      double before = std::numeric_limits<double>::infinity();
      bool used = true;
      for (std::int64_t rank = 0; rank < 4 * bytes; ++rank) {
        const std::int64_t j = (3 - rank / bytes) * bytes + rank % bytes;
        const float* slot = linear.slots.data() + j * dim;
        const double weight = std::sqrt(dot(slot, slot, dim));  // axes are of length 1, rounded
        EXPECT_LE(weight, before * (1 + 1e-5)) << dim << " slot " << j;
        before = weight;
        used = used && weight > 0;
        for (std::int64_t i = 0; !used && i < 500; ++i) EXPECT_EQ(coded.slot(i, j), 0);
      }
      EXPECT_EQ(used, dim != 5) << falls;  // of which each takes two slots of 12
    }
  }
}

TEST(KeyCodes, LeaveOfNormalKeysWhatTheoryDoes) {
  // Max 1960, table II: 2 bits leave 0.1188 of the variance, 4 bits 0.01154. With 8 bytes half of
  // the axes have no bits; it is those along which this sample varies least.
  const std::int64_t dim = 64;
  const auto keys = turned_keys(20000, dim, 1.0, 21);
  const auto left = [&](std::int64_t bytes) {
    const CodedKeys coded(view_of(keys, dim), bytes);
    return std::accumulate(coded.residuals.begin(), coded.residuals.end(), 0.0) / (20000.0 * dim);
  };
  EXPECT_NEAR(left(32), 0.01154, 0.0003);
  EXPECT_NEAR(left(16), 0.1188, 0.003);
  EXPECT_NEAR(left(8), (1 + 0.1188) / 2, 0.03);
}

TEST(KeyCodes, ErrorsAreAsLargeAsTheySayAndAverageOut) {
  const std::int64_t dim = 64;
  const std::int64_t count = 20000;
  for (const double falls : {1.0, 0.95, 0.8}) {
    const auto keys = turned_keys(count, dim, falls, 11);
    double before = 1e30;
    for (const std::int64_t bytes : {4, 8, 16, 32}) {
      const CodedKeys coded(view_of(keys, dim), bytes);
      const auto q = some_query(dim, 7);
      SlotWeights weights;
      const std::vector<float> scores = coded.scores(q, weights);
      const double middle = std::accumulate(scores.begin(), scores.end(), 0.0) / count;
      double sum = 0;
      double squares = 0;
      double mean_score = 0;
      double score_squares = 0;
      double products = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double score = dot(q.data(), keys.data() + i * dim, dim);
        const double off = scores[static_cast<std::size_t>(i)] - score;
        sum += off;
        squares += off * off;
        mean_score += score;
        score_squares += score * score;
        products += off * (scores[static_cast<std::size_t>(i)] - middle);
      }
      const double n = static_cast<double>(count);
      const double variance = score_squares / n - mean_score / n * (mean_score / n);
      const double expected = coded.coder.error_variance(q.data());
      // Of coefficients, each off by up to half a step, times a slot's value, of a variance of up
      // to 9 / 4.
      const double rounding =
          weights.step * std::sqrt(4 * static_cast<double>(coded.coder.bytes()) / 12 * 9 / 4);
      EXPECT_NEAR(squares / n, expected, 0.1 * expected + 1e-4 * variance + 9 * rounding * rounding)
          << falls << " " << bytes;
      EXPECT_LT(std::abs(sum / n),
                4 * std::sqrt(expected / n) + 0.01 * std::sqrt(variance) + 4 * rounding);
      // Nor do errors grow with the code's score, which varies less than the key's.
      EXPECT_LT(std::abs(products / n),
                std::sqrt(variance) *
                    (4 * std::sqrt(expected / n) + 0.01 * std::sqrt(variance) + 4 * rounding));
      EXPECT_LT(rounding, 0.06 * std::sqrt(variance));
      EXPECT_LT(expected, before) << "more bytes, and no less error";
      before = expected;
      // By reverse water-filling.
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
        const CodedKeys coded(view_of(keys, dim), 16);
        const auto key = coded.decode(0, dim);
        for (std::int64_t j = 0; equal && j < dim; ++j) {
          const auto at = static_cast<std::size_t>(j);
          EXPECT_NEAR(key[at], keys[at], 1e-5 * static_cast<double>(size)) << size;
        }
        const Linear linear(coded.coder, dim);
        SlotWeights weights;
        coded.coder.weigh_slots(some_query(dim, 1).data(), weights);
        for (const auto& numbers : {coded.residuals,
                                    key,
                                    linear.slots,
                                    linear.middle,
                                    linear.errors,
                                    {weights.offset, weights.step},
                                    {weights.table_offset, weights.table_step}}) {
          for (const float x : numbers) EXPECT_FALSE(std::isnan(x)) << size;
        }
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

TEST(ValueCodes, LinearSaysWhatCodesStandFor) {
  const std::int64_t count = 200;
  for (const std::int64_t dim : {5, 64, 80, 128}) {
    for (const std::int64_t bytes : {8, 16, 32}) {
      const auto values = turned_keys(count, dim, 0.95, 3);
      const ValueCoder coder(view_of(values, dim), 8 * bytes);
      EXPECT_EQ(coder.bits(), std::min(dim, 8 * bytes));
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(coder.bytes_for(count)));
      coder.encode(view_of(values, dim), 0, count, codes.data());
      std::vector<float> axes(static_cast<std::size_t>(coder.bits() * dim), std::nanf(""));
      std::vector<float> base(static_cast<std::size_t>(dim), std::nanf(""));
      coder.linear(axes.data(), base.data());
      std::vector<float> want(static_cast<std::size_t>(dim));
      for (const std::int64_t i : {0, 1, 2, 3, 63, 64, 199}) {
        coder.decode(codes.data(), i, want.data());
        for (std::int64_t d = 0; d < dim; ++d) {
          double got = base[static_cast<std::size_t>(d)];
          double size = std::abs(got);
          for (std::int64_t a = 0; a < coder.bits(); ++a) {
            const std::int64_t byte = i / 4 * coder.lanes() + a % coder.lanes();
            const std::int64_t bit = i % 4 + a / coder.lanes() * 4;
            const double x = axes[static_cast<std::size_t>(a * dim + d)];
            got += (codes[static_cast<std::size_t>(byte)] >> bit & 1) * x;
            size += std::abs(x);
          }
          EXPECT_NEAR(want[static_cast<std::size_t>(d)], got, 1e-5 * (size + 1)) << dim << " " << i;
        }
      }
    }
  }
}

TEST(ValueCodes, ValuesThatRepeatAreMetOnAverage) {
  // What the nearest levels leave of a value is the same in each copy of it.
  const std::int64_t dim = 64;
  const std::int64_t copies = 4096;
  const auto few = turned_keys(24, dim, 0.95, 7);
  std::vector<float> values;
  for (std::int64_t i = 0; i < copies * 24; ++i) {
    const auto from = few.begin() + i % 24 * dim;
    values.insert(values.end(), from, from + dim);
  }
  const ValueCoder coder(view_of(values, dim), dim);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(coder.bytes_for(copies * 24)));
  coder.encode(view_of(values, dim), 0, copies * 24, codes.data());
  std::vector<float> decoded(static_cast<std::size_t>(dim));
  for (const std::int64_t which : {0, 5, 23}) {
    std::vector<double> mean(static_cast<std::size_t>(dim), 0.0);
    for (std::int64_t i = 0; i < copies; ++i) {
      coder.decode(codes.data(), i * 24 + which, decoded.data());
      for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += decoded[d] / copies;
    }
    double off = 0;
    double size = 0;
    for (std::size_t d = 0; d < mean.size(); ++d) {
      const double value = few[static_cast<std::size_t>(which * dim) + d];
      off += (mean[d] - value) * (mean[d] - value);
      size += value * value;
    }
    // Levels are some 2 deviations from the middle: 2 / sqrt(copies) of chance.
    EXPECT_LT(std::sqrt(off / size), 0.06) << which;
  }
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
        const double* axis = axes.data() + a * n;
        product += axes.data()[i * n + a] * axes.data()[j * n + a];
        entry += values[static_cast<std::size_t>(a)] * axis[i] * axis[j];
      }
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 1e-10);
      EXPECT_NEAR(entry, matrix[static_cast<std::size_t>(i * n + j)], 1e-9 * values[0]);
    }
  }
}

TEST(CodesParams, TellTheSizeOfCodes) {
  for (const CodesParams params : {CodesParams{16, 8}, CodesParams{64, 16}, CodesParams{3, 1}}) {
    for (const std::int64_t dim : {7, 64, 96, 128, 160, 256}) {
      const auto keys = turned_keys(300, dim, 0.9, 3);
      CodesIndex index(params);
      index.add(view_of(keys, dim), {});
      index.build({});
      EXPECT_EQ(params.bytes_of_key(dim), index.coder().bytes());
      const std::int64_t bits = params.bits_of_value(dim);
      EXPECT_EQ(ValueCoder(view_of(keys, dim), bits).bits(), bits);
      EXPECT_EQ(bits, std::min(dim, (dim > 128 ? 16 : 8) * params.value_bytes));
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
