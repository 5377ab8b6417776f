// Vectors in q8 and q4, against plain arithmetic in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "src/core/row_format.h"
#include "tests/row_blocks.h"

namespace topkv {
namespace {

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
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
        std::vector<float> x = random_floats(dim, static_cast<unsigned>(dim));
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
      const std::vector<float> x = random_floats(96, seed);
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
  std::vector<float> x = random_floats(count * dim, 3);
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

}  // namespace
}  // namespace topkv
