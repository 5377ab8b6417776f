// Sums of weights and of the values that they are of, against float64: all weights are in the sum
// of a query, and blocks of values that are read stand for those that are not.
#include "index/codes/code_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace topkv {
namespace {

/// Adds tiles of scores to the sums of a query, as add_tile does, and reads the values' codes.
struct Summed {
  static constexpr std::int64_t lanes = 16;

  /// scores: whole tiles; codes: of as many values. keys, expected: as for CodeSums::reset; no
  /// more keys than scores: 0.
  Summed(const std::vector<float>& scores, const std::vector<std::uint8_t>& codes,
         std::int64_t keys = 0, float expected = empty_lse) {
    sums.reset(lanes, std::max(keys, std::ssize(scores)), expected);
    std::vector<float> weights(code_tile);
    std::vector<std::uint8_t> rounded(code_tile);
    std::vector<float> tile_scores(code_tile);
    std::vector<float> highs(tile_blocks);
    for (std::int64_t first = 0; first < std::ssize(scores); first += code_tile) {
      std::copy_n(scores.begin() + first, code_tile, tile_scores.begin());
      TileScores tile{tile_scores.data(), highs.data(), first, code_tile};
      for (std::int64_t b = 0; b < tile_blocks; ++b) tile.update(b);
      const WeightedTile read = sums.add(tile, weights, rounded, true);
      blocks_read += std::popcount(read.blocks);
      sum_values(codes.data() + first / 4 * lanes, lanes, {&read, 1});
    }
  }

  CodeSums sums;
  std::int64_t blocks_read = 0;
};

std::vector<std::uint8_t> codes_of(std::int64_t values, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(values / 4 * Summed::lanes));
  for (auto& byte : codes) byte = static_cast<std::uint8_t>(random());
  return codes;
}

/// Whether value i has the bit of an axis.
bool has_bit(const std::vector<std::uint8_t>& codes, std::int64_t i, std::int64_t axis) {
  const std::int64_t at = i / 4 * Summed::lanes + axis % Summed::lanes;
  return (codes[static_cast<std::size_t>(at)] >> (axis / Summed::lanes * 4 + i % 4) & 1) != 0;
}

/// Of a query's sums, in float64.
struct Wanted {
  Wanted(const std::vector<float>& scores, const std::vector<std::uint8_t>& codes, float high)
      : axes(2 * Summed::lanes) {
    for (std::int64_t i = 0; i < std::ssize(scores); ++i) {
      const double weight =
          std::exp(static_cast<double>(scores[static_cast<std::size_t>(i)]) - high);
      total += weight;
      squares += weight * weight;
      for (std::int64_t a = 0; a < 2 * Summed::lanes; ++a)
        axes[static_cast<std::size_t>(a)] += has_bit(codes, i, a) ? weight : 0;
    }
  }
  double total = 0, squares = 0;
  std::vector<double> axes;
};

double mean_square_off(const CodeSums& sums, const Wanted& want) {
  double off = 0;
  for (std::int64_t a = 0; a < 2 * Summed::lanes; ++a) {
    const std::int64_t place = 2 * (a % Summed::lanes) + a / Summed::lanes;
    const double got = sums.axes[static_cast<std::size_t>(place)] / sums.read;
    EXPECT_GE(got, 0);
    EXPECT_LE(got, 1.00001);
    const double difference = got - want.axes[static_cast<std::size_t>(a)] / want.total;
    off += difference * difference / static_cast<double>(2 * Summed::lanes);
  }
  return off;
}

TEST(CodeSums, EvenWeightsReadEveryBlock) {
  std::mt19937 random(1);
  const std::int64_t count = 40 * code_tile;
  std::vector<float> scores(static_cast<std::size_t>(count));
  for (float& x : scores) x = static_cast<float>(random() % 1000) / 1000;
  const auto codes = codes_of(count, 2);
  const Summed got(scores, codes);
  EXPECT_EQ(got.blocks_read, count / code_block);
  const Wanted want(scores, codes, got.sums.high);
  EXPECT_NEAR(got.sums.total / want.total, 1, 1e-6);
  EXPECT_NEAR(got.sums.squares / want.squares, 1, 1e-6);
  // Weights are rounded to 1 / 62.5 of the largest, at random.
  EXPECT_NEAR(got.sums.read / want.total, 1, 1e-3);
  EXPECT_NEAR(got.sums.read_squares / want.squares, 1, 1e-5);
  EXPECT_LT(mean_square_off(got.sums, want), 1e-7);
}

TEST(CodeSums, BlocksOfLittleWeightStandForEachOther) {
  // Scores that fall along the keys, that rise, and that differ from key to key.
  const std::int64_t count = 128 * code_tile;  // what a thread sums up
  for (const int order : {0, 1, 2}) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> scores(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto part = static_cast<float>(i) / static_cast<float>(count);
      const float falls = order == 0 ? -9 * part : order == 1 ? 9 * part - 9 : 0.0F;
      scores[static_cast<std::size_t>(i)] =
          falls + normal(random) + (order == 2 ? 3 * normal(random) : 0.0F);
    }
    double off = 0;
    double expected = 0;
    double rounding = 0;  // of the sum of weights that were read, which its square is divided by
    std::int64_t read = 0;
    constexpr unsigned tries = 12;
    for (unsigned i = 0; i < tries; ++i) {
      const auto codes = codes_of(count, 10 + i);
      const Summed got(scores, codes);
      const Wanted want(scores, codes, got.sums.high);
      EXPECT_NEAR(got.sums.total / want.total, 1, 2e-6);
      EXPECT_NEAR(got.sums.squares / want.squares, 1, 2e-6);
      EXPECT_NEAR(got.sums.read / (want.total - got.sums.waiting), 1, 2e-3);
      EXPECT_LT(got.sums.waiting, want.total / 2048);
      off += mean_square_off(got.sums, want);
      // Bits are chance, of a variance of 1/4.
      expected += (got.sums.read_squares / got.sums.read / got.sums.read -
                   got.sums.squares / got.sums.total / got.sums.total) /
                  4;
      rounding += 4e-3 * want.squares / (want.total * want.total) / 4;
      read += got.blocks_read;
    }
    if (order == 1) {  // each block holds more than those before it
      EXPECT_EQ(read, tries * count / code_block);
      EXPECT_LT(off / tries, 1e-6);
      continue;
    }
    EXPECT_LT(read, (order == 0 ? 0.8 : 0.9) * tries * count / code_block) << order;
    EXPECT_GT(off, 0.05 * expected - rounding) << order;
    EXPECT_LT(off, 2.5 * std::max(expected, 0.0) + rounding) << order;
  }
}

TEST(CodeSums, LongContextsReadAPartOfEvenWeights) {
  std::mt19937 random(7);
  const std::int64_t count = sum_keys;
  std::vector<float> scores(static_cast<std::size_t>(count));
  for (float& x : scores) x = static_cast<float>(random() % 1000) / 1000;
  double sum = 0;
  for (const float x : scores) sum += std::exp(static_cast<double>(x));
  const auto right = static_cast<float>(std::log(sum));
  // What is expected may be far off: less is as if nothing were known, and more reads fewer blocks.
  for (const float expected : {empty_lse, right - 30, right, right + 2, right + 1000}) {
    double off = 0;
    double noise = 0;
    constexpr unsigned tries = 12;
    for (unsigned i = 0; i < tries; ++i) {
      const auto codes = codes_of(count, 20 + i);
      const Summed got(scores, codes, 64 * count, expected);
      const Wanted want(scores, codes, got.sums.high);
      EXPECT_NEAR(got.sums.total / want.total, 1, 2e-6);
      EXPECT_NEAR(got.sums.squares / want.squares, 1, 2e-6);
      EXPECT_LT(got.sums.waiting, want.total / 16);
      EXPECT_GT(got.blocks_read, 16);
      EXPECT_LT(got.blocks_read, expected < right ? 450 : 200) << expected;
      off += mean_square_off(got.sums, want);
      // Bits are chance, of a variance of 1/4.
      noise += (got.sums.read_squares / got.sums.read / got.sums.read -
                got.sums.squares / got.sums.total / got.sums.total) /
               4;
    }
    EXPECT_LT(off, 2.5 * noise) << expected;
    EXPECT_GT(off, 0.3 * noise) << expected;
  }
}

TEST(CodeSums, BlocksFarBelowAddNothing) {
  const std::int64_t count = 2 * code_tile;
  std::vector<float> scores(static_cast<std::size_t>(count), -28.0F);
  scores[70] = 0;
  scores[static_cast<std::size_t>(code_tile + 300)] = -20;
  const auto codes = codes_of(count, 8);
  const Summed got(scores, codes);
  const Wanted want(scores, codes, 0);
  EXPECT_NEAR(got.sums.total / want.total, 1, 1e-6);
  EXPECT_EQ(got.blocks_read, 1);
}

TEST(CodeSums, KeysThatAreLeftOutAreNotRead) {
  // Only the last keys of a tile are there, then none, then some far below.
  const std::int64_t count = 3 * code_tile;
  std::vector<float> scores(static_cast<std::size_t>(count), empty_lse);
  std::fill(scores.begin() + code_tile - 5, scores.begin() + code_tile, 2.0F);
  std::fill(scores.begin() + 2 * code_tile, scores.end(), -60.0F);
  const auto codes = codes_of(count, 4);
  const Summed got(scores, codes);
  EXPECT_EQ(got.blocks_read, 1);
  EXPECT_EQ(got.sums.total, 5);
  const Wanted want(scores, codes, 2);
  EXPECT_LT(mean_square_off(got.sums, want), 1e-4);
  const Summed none(std::vector<float>(static_cast<std::size_t>(count), empty_lse), codes);
  EXPECT_EQ(none.blocks_read, 0);
  EXPECT_EQ(none.sums.high, empty_lse);
}

TEST(CodeSums, PartsJoinToTheSumsOfAll) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const std::int64_t count = 24 * code_tile;
  std::vector<float> scores(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    scores[static_cast<std::size_t>(i)] = 2 * normal(random) + (i < count / 2 ? 0.0F : 5.0F);
  const auto codes = codes_of(count, 6);
  const auto half = static_cast<std::ptrdiff_t>(scores.size() / 2);
  Summed first({scores.begin(), scores.begin() + half},
               {codes.begin(), codes.begin() + std::ssize(codes) / 2});
  Summed second({scores.begin() + half, scores.end()},
                {codes.begin() + std::ssize(codes) / 2, codes.end()});
  first.sums.add(second.sums);
  const Wanted want(scores, codes, first.sums.high);
  EXPECT_NEAR(first.sums.total / want.total, 1, 2e-6);
  EXPECT_NEAR(first.sums.read / want.total, 1, 5e-3);
  EXPECT_LT(mean_square_off(first.sums, want), 1e-4);
}

}  // namespace
}  // namespace topkv
