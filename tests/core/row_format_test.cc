// Vectors in q8 and q4, against plain arithmetic in float64.
#include "src/core/math/row_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "src/core/math/dot.h"
#include "src/core/math/key_bias.h"
#include "tests/support/key_bias.h"
#include "tests/support/row_blocks.h"

namespace topkv {
namespace {

std::vector<float> random_row_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

struct Stored {
  Stored(const float* x, DType dtype, std::int64_t dim, const float* channels = nullptr)
      : bytes(static_cast<std::size_t>(vector_bytes(dtype, dim) + 1), std::byte{0xa5}) {
    view = {bytes.data(), dtype, 1, dim, vector_bytes(dtype, dim), channels};
    encode(x, dim, dtype, channels, bytes.data());
  }
  Stored(const Stored&) = delete;
  std::vector<float> read() const {
    std::vector<float> out(static_cast<std::size_t>(view.dim));
    decode(view, 0, out.data());
    return out;
  }

  std::vector<std::byte> bytes;
  KeyView view;
};

TEST(RowFormat, TakesTheBytesThatAreSaid) {
  EXPECT_EQ(vector_bytes(DType::q8, 128), 4 * 34);
  EXPECT_EQ(vector_bytes(DType::q4, 128), 4 * 20);
  EXPECT_EQ(vector_bytes(DType::q8, 80), 3 * 34);
  EXPECT_EQ(vector_bytes(DType::q4, 1), 20);
  EXPECT_EQ(vector_bytes(DType::bf16, 80), 160);
}

TEST(RowFormat, BlocksAreReadAsDescribedAndWrittenNearly) {
  for (const DType dtype : {DType::q8, DType::q4}) {
    for (const std::int64_t dim : {1, 7, 15, 16, 17, 31, 32, 33, 64, 80, 96, 128, 200, 256}) {
      for (const float size : {1e-3F, 1.0F, 300.0F}) {
        std::vector<float> x = random_row_values(dim, static_cast<unsigned>(dim));
        for (float& one : x) one *= size;
        std::vector<float> channels(static_cast<std::size_t>(dim), 1.0F);
        channels[static_cast<std::size_t>(dim / 2)] = 16;
        for (const bool scaled : {false, true}) {
          const float* scales = scaled ? channels.data() : nullptr;
          const Stored stored(x.data(), dtype, dim, scales);
          EXPECT_EQ(stored.bytes.back(), std::byte{0xa5}) << "wrote past the vector";
          const std::vector<float> read = stored.read();
          const test::BlockValues want = test::read_blocks(stored.view, 0);
          // Scales are rounded to f16: by 2^-11 of themselves, of the largest code too.
          const double most = dtype == DType::q8 ? 127 : 15;
          double largest = 0;
          for (const float one : x) largest = std::max(largest, std::abs(double{one}));
          for (std::int64_t i = 0; i < dim; ++i) {
            const auto at = static_cast<std::size_t>(i);
            EXPECT_NEAR(read[at], want.elements[at], 1e-6 * std::abs(want.elements[at]) + 1e-12);
            const double channel = scales == nullptr ? 1 : scales[i];
            const double bound = want.steps[at] * (0.5 + most * 0x1p-11) + 0x1p-11 * largest +
                                 channel * (most + 1) * 0x1p-25;  // the least number of f16
            EXPECT_NEAR(read[at], x[at], bound * 1.001) << dim << " " << i;
          }
        }
      }
    }
  }
}

TEST(RowFormat, WhatWasReadIsWrittenAsItIs) {
  for (const DType dtype : {DType::q8, DType::q4}) {
    for (unsigned seed = 0; seed < 200; ++seed) {
      const std::vector<float> x = random_row_values(96, seed);
      const Stored once(x.data(), dtype, 96);
      const std::vector<float> read = once.read();
      EXPECT_EQ(Stored(read.data(), dtype, 96).read(), read);
    }
  }
}

TEST(RowFormat, EqualTinyAndLargeElementsStayFinite) {
  for (const DType dtype : {DType::q8, DType::q4}) {
    for (const float value : {0.0F, -0.0F, 1.5F, -2.0F, 1e-9F, 1e-38F, 60000.0F}) {
      const std::vector<float> x(64, value);
      for (const float read : Stored(x.data(), dtype, 64).read()) {
        EXPECT_TRUE(std::isfinite(read));
        EXPECT_NEAR(read, value, std::abs(value) * 0.005 + 1e-7);
      }
    }
  }
}

TEST(RowFormat, WhatIsBeyondReadsAsNotFinite) {
  for (const DType dtype : {DType::q8, DType::q4}) {
    for (const float value : {1e9F, -1e9F, std::numeric_limits<float>::max()}) {
      std::vector<float> x(64, 1.0F);
      x[40] = value;
      const std::vector<float> read = Stored(x.data(), dtype, 64).read();
      EXPECT_FALSE(std::ranges::all_of(read, [](float one) { return std::isfinite(one); }));
      EXPECT_NEAR(read[3], 1, 0.01) << "the other block holds what it should";
    }
  }
}

TEST(RowFormat, OutlyingChannelsGetScalesOfTheirOwn) {
  constexpr std::int64_t dim = 64;
  constexpr std::int64_t count = 512;
  std::vector<float> x = random_row_values(count * dim, 3);
  for (std::int64_t r = 0; r < count; ++r) {
    x[static_cast<std::size_t>(r * dim + 5)] *= 20;
    x[static_cast<std::size_t>(r * dim + 40)] = 100 + x[static_cast<std::size_t>(r * dim + 40)];
    x[static_cast<std::size_t>(r * dim + 50)] *= 0.01F;
  }
  std::vector<float> channels(dim, -1);
  choose_channels(x.data(), count, dim, channels.data());
  for (std::int64_t i = 0; i < dim; ++i) {
    const float want = i == 5 ? 16 : i == 40 ? 128 : 1;
    EXPECT_EQ(channels[static_cast<std::size_t>(i)], want) << i;
  }
  // Elements beside such a channel are as near as they are without it.
  double with = 0;
  double without = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const float* row = x.data() + r * dim;
    const std::vector<float> scaled = Stored(row, DType::q8, dim, channels.data()).read();
    const std::vector<float> plain = Stored(row, DType::q8, dim).read();
    with += std::abs(scaled[0] - row[0]);
    without += std::abs(plain[0] - row[0]);
  }
  EXPECT_LT(with * 3, without);

  choose_channels(x.data(), least_for_channels - 1, dim, channels.data());
  EXPECT_EQ(channels, std::vector<float>(dim, 1.0F)) << "too few to tell";
  choose_channels(std::vector<float>(count * dim).data(), count, dim, channels.data());
  EXPECT_EQ(channels, std::vector<float>(dim, 1.0F)) << "nothing but zeros";
}

TEST(RowFormat, ABiasIsTurnedAsRopeTurnsIt) {
  for (const std::int64_t dim : {2, 20, 64, 80, 128}) {
    std::vector<BiasedPair> pairs;
    for (std::int64_t i = 0; i < dim / 2; ++i)
      pairs.push_back({i, 100 + static_cast<float>(i), i % 2 == 0 ? 70.0F : -30.0F});
    const std::vector<float> bias = one_key_bias(dim, 1e7, pairs);
    KeyView view{nullptr, DType::q4, 1, dim, 0, nullptr, bias.data()};
    std::vector<float> got(static_cast<std::size_t>(dim));
    for (const std::int64_t chunk : {0, 1000}) {
      for (const std::int64_t position :
           {0, 1, 2, 3, 5, 77, 4000, 262143, 1 << 20, (1 << 24) + 5}) {
        view.first_position = position - position / 2;
        view.chunk_len = chunk;
        turned_bias(view, position / 2, got.data());
        const std::int64_t p = chunk > 0 ? position % chunk : position;
        for (std::int64_t i = 0; i < dim; ++i)
          EXPECT_NEAR(got[static_cast<std::size_t>(i)], rope_turned(bias.data(), dim, i, p), 5e-5)
              << dim << " " << i << " at " << position;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), bias_at(view, position / 2)));
      }
    }
  }
}

TEST(RowFormat, HalvesOfAHeadAreTurnedByTheirOwnFrequencies) {
  constexpr std::int64_t dim = 64;
  for (const std::int64_t other : {std::int64_t{-1}, std::int64_t{0}, dim / 2 + 17, dim - 1}) {
    std::vector<float> bias(3 * dim);
    for (std::int64_t i = 0; i < dim; ++i) {
      bias[i] = 3.25F - static_cast<float>(i);
      bias[dim + i] = 0.5F * static_cast<float>(i);
      bias[2 * dim + i] = 1.0F / static_cast<float>(1 + i % (dim / 2));
    }
    if (other >= 0) bias[2 * dim + other] = 0.7F;  // not that of the element half a head apart
    const KeyView view{nullptr, DType::q4, 1, dim, 0, nullptr, bias.data(), 123457};
    std::vector<float> got(dim);
    turned_bias(view, 0, got.data());
    for (std::int64_t i = 0; i < dim; ++i) {
      const float one[3] = {bias[i], bias[dim + i], bias[2 * dim + i]};
      const KeyView alone{nullptr, DType::q4, 1, 1, 0, nullptr, one, 123457};
      float want = 0;
      turned_bias(alone, 0, &want);
      EXPECT_EQ(got[i], want) << other << " " << i;
    }
  }
}

TEST(RowFormat, ElementsOfVectorsAndLastOnesAreTurnedToTheSameBits) {
  constexpr std::int64_t dim = 37;
  for (int n = 0; n < 200; ++n) {
    std::vector<float> bias(3 * dim, 3.25F);
    std::fill_n(bias.begin() + dim, dim, -171.3F);
    std::fill_n(bias.begin() + 2 * dim, dim, 0.013F * static_cast<float>(n * n % 97));
    const KeyView view{nullptr, DType::q4, 1, dim, 0, nullptr, bias.data(), n * 5003};
    const float* got = bias_at(view, 0);
    for (std::int64_t i = 1; i < dim; ++i) EXPECT_EQ(got[0], got[i]) << n << " " << i;
  }
}

// Norms of 700 to 900, in slow pairs, in fast ones, and near the end of a million tokens: scores
// are those that keys without a bias have, to within the rounding of these.
TEST(RowFormat, LargeBiasesAreTakenOffWhereverTheyAre) {
  constexpr std::int64_t dim = 128;
  constexpr std::int64_t count = 512;
  const std::vector<std::vector<BiasedPair>> cases = {
      {{62, 100, -100}},
      {{57, 150, -100}, {58, 300, 200}, {60, 250, 100}, {63, -500, 500}},
      {{2, 100, 60}, {10, 200, -200}, {30, 150, 150}, {45, 300, 300}, {60, 400, 500}}};
  for (const auto& pairs : cases) {
    const std::vector<float> bias = one_key_bias(dim, 1e7, pairs);
    for (const std::int64_t first : {std::int64_t{0}, (std::int64_t{1} << 20) - count}) {
      const std::vector<float> rest = random_row_values(count * dim, 11);
      const std::vector<float> query = random_row_values(dim, 12);
      const auto error = [&](DType dtype, bool biased, bool known) {
        KeyView view{nullptr, dtype, count, dim, vector_bytes(dtype, dim)};
        if (known) view.bias = bias.data();
        view.first_position = first;
        std::vector<float> x = rest;
        for (std::int64_t i = 0; biased && i < count * dim; ++i)
          x[static_cast<std::size_t>(i)] +=
              static_cast<float>(rope_turned(bias.data(), dim, i % dim, first + i / dim));
        std::vector<float> residual = x;
        for (std::int64_t r = 0; known && r < count; ++r) {
          for (std::int64_t i = 0; i < dim; ++i)
            residual[static_cast<std::size_t>(r * dim + i)] -= bias_at(view, r)[i];
        }
        std::vector<float> channels(dim);
        choose_channels(residual.data(), count, dim, channels.data());
        std::vector<std::byte> bytes(static_cast<std::size_t>(count * view.stride_bytes));
        view.data = bytes.data();
        view.channels = channels.data();
        for (std::int64_t r = 0; r < count; ++r)
          encode(&x[static_cast<std::size_t>(r * dim)], dim, dtype, channels.data(),
                 &bytes[static_cast<std::size_t>(r * view.stride_bytes)], bias_at(view, r));
        std::vector<float> scores(count);
        dot_block(query.data(), 1, view, scores.data(), count);
        double squares = 0;
        for (std::int64_t r = 0; r < count; ++r) {
          double want = 0;
          for (std::int64_t i = 0; i < dim; ++i)
            want += double{query[static_cast<std::size_t>(i)]} *
                    double{x[static_cast<std::size_t>(r * dim + i)]};
          const double off = scores[static_cast<std::size_t>(r)] - want;
          squares += off * off;
        }
        return std::sqrt(squares / count);
      };
      for (const DType dtype : {DType::q4, DType::q8}) {
        const double none = error(dtype, false, false);
        EXPECT_LT(error(dtype, true, true), 1.2 * none);
        EXPECT_GT(error(dtype, true, false), 4 * none) << "rounded with the rest";
      }
    }
  }
}

}  // namespace
}  // namespace topkv
