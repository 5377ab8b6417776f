// The loops over codes, against float64, as compiled for each of the processors that this one can
// stand for.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "index/codes/key_codes.h"
#include "index/codes/value_codes.h"

namespace topkv {
namespace {

/// Has loops take the code for one target while it lives.
class On {
 public:
  explicit On(std::int64_t target) { choose(target); }
  ~On() { choose(0); }
  On(const On&) = delete;  // there is one choice for all

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

template <class Work>
void on_each_target(const Work& work) {
  int tried = 0;
  const std::int64_t all = hwy::SupportedTargets();
  for (int bit = 0; bit < 62; ++bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((all & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    const On on(target);
    work();
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

std::vector<std::uint8_t> some_bytes(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
  return bytes;
}

TEST(CodeKernels, ScoresAreSumsOverSlots) {
  on_each_target([] {
    for (const std::int64_t bytes : {1, 6, 16, 32, 33, 128}) {
      const std::int64_t keys = 5 * code_block + 7;
      const auto codes = some_bytes((keys + code_block) / code_block * code_block * bytes, 1);
      std::mt19937 random(2);
      for (const std::int64_t queries : {1, 2, 3, 5, 8}) {
        std::vector<SlotWeights> weights(static_cast<std::size_t>(queries));
        std::vector<float> slots(static_cast<std::size_t>(4 * bytes));
        for (SlotWeights& of : weights) {
          of.coefficients.resize(static_cast<std::size_t>((bytes + 3) / 4 * 16));
          for (std::int64_t i = 0; i < std::ssize(of.coefficients); ++i) {
            const bool used = i / 16 * 4 + i % 4 < bytes;
            of.coefficients[static_cast<std::size_t>(i)] =
                static_cast<std::int8_t>(used ? static_cast<int>(random() % 255) - 127 : 0);
          }
          of.step = 0.5F;
          of.offset = static_cast<float>(&of - weights.data());
          for (std::int64_t i = 0; i < 4 * bytes; ++i) {
            const std::int64_t at = (i / 16 * 4 + i % 4) * 4 + i / 4 % 4;
            slots[static_cast<std::size_t>(i)] =
                of.step * of.coefficients[static_cast<std::size_t>(at)];
          }
          make_tables(slots.data(), bytes, of);
          of.table_offset += of.offset;
        }
        std::vector<float> scores(static_cast<std::size_t>(queries * keys));
        const std::int64_t blocks = (keys + code_block - 1) / code_block;
        std::vector<float> highs(static_cast<std::size_t>(queries * blocks));
        score_codes(codes.data(), bytes, weights, code_block, keys - code_block, scores.data(),
                    keys, highs.data());
        for (std::int64_t q = 0; q < queries; ++q) {
          const SlotWeights& of = weights[static_cast<std::size_t>(q)];
          // Two entries are added for each byte. Each is off by up to half a step, and so is the
          // mean of a table's errors, which table_offset makes up for.
          const double most_off = 2 * of.table_step * static_cast<double>(bytes);
          double squares = 0;
          for (std::int64_t i = code_block; i < keys; ++i) {
            double want = of.offset;
            for (std::int64_t b = 0; b < bytes; ++b) {
              const int code = codes[static_cast<std::size_t>(
                  (i / code_block * bytes + b) * code_block + i % code_block)];
              for (int field = 0; field < 4; ++field) {
                want += of.step * (code >> (2 * field) & 3) *
                        of.coefficients[static_cast<std::size_t>((b / 4 * 4 + field) * 4 + b % 4)];
              }
            }
            const float got = scores[static_cast<std::size_t>(q * keys + i - code_block)];
            ASSERT_NEAR(got, static_cast<float>(want), most_off)
                << bytes << " bytes, query " << q << " of " << queries << ", key " << i;
            squares += (got - want) * (got - want);
          }
          // Errors of entries are spread evenly and add up at random.
          EXPECT_LE(std::sqrt(squares / static_cast<double>(keys - code_block)),
                    1.3 * of.table_step * std::sqrt(static_cast<double>(2 * bytes) / 12));
          for (std::int64_t b = 0; b + 1 < blocks; ++b) {
            const float* from = scores.data() + q * keys + b * code_block;
            const std::int64_t of_block = std::min(code_block, keys - (b + 1) * code_block);
            EXPECT_EQ(highs[static_cast<std::size_t>(q * blocks + b)],
                      *std::max_element(from, from + of_block));
          }
        }
      }
    }
  });
}

TEST(CodeKernels, WeightsAreExponentialsOfScores) {
  on_each_target([] {
    for (const std::int64_t count : {value_block, value_tile}) {
      for (const float high : {-70.0F, 0.0F, 3.0F, 700.0F}) {
        std::mt19937 random(4);
        std::vector<float> scores(static_cast<std::size_t>(count));
        for (float& x : scores) x = high - static_cast<float>(random() % 6000) / 100;
        scores[17] = high;
        std::vector<float> weights(scores.size());
        std::vector<WeightSums> sums(static_cast<std::size_t>(count / value_block));
        weigh_scores(scores.data(), count, high, weights.data(), sums.data());
        EXPECT_EQ(weights[17], 1);
        for (std::size_t b = 0; b < sums.size(); ++b) {
          double total = 0;
          double squares = 0;
          for (std::size_t i = b * value_block; i < (b + 1) * value_block; ++i) {
            const double below = static_cast<double>(scores[i]) - high;
            // The exponent is rounded to float32.
            EXPECT_NEAR(weights[i] / std::exp(below), 1, 6e-7 - 1e-7 * below);
            total += std::exp(below);
            squares += std::exp(2 * below);
          }
          EXPECT_NEAR(sums[b].total / total, 1, 1e-6);
          EXPECT_NEAR(sums[b].squares / squares, 1, 2e-6);
        }
      }
    }
  });
}

TEST(CodeKernels, SumsAreThoseOfTheWeightsOfValuesThatHaveTheBit) {
  on_each_target([] {
    for (const std::int64_t lanes : {16, 32, 48, 64, 128}) {
      for (const std::int64_t count : {value_block, value_tile}) {
        const auto codes = some_bytes(count / 4 * lanes, 3);
        const std::int64_t blocks = count / value_block;
        std::mt19937 random(4);
        for (const std::int64_t queries : {1, 2, 3, 4, 7}) {
          const auto all = static_cast<std::size_t>(queries * count);
          std::vector<float> weights(all);
          for (float& x : weights) x = std::exp(-static_cast<float>(random() % 2000) / 100);
          std::vector<std::uint8_t> whole(all);
          std::vector<float> sums(static_cast<std::size_t>(queries * 2 * lanes), 1.0F);
          std::vector<WeightedTile> tiles;
          std::vector<std::vector<float>> factors;
          std::vector<float> largest;
          for (std::int64_t q = 0; q < queries; ++q) {
            // Some of the blocks, each with a factor.
            const std::uint32_t every = (std::uint32_t{1} << blocks) - 1;
            std::uint32_t read = static_cast<std::uint32_t>(random()) & every;
            if (q == 0 || read == 0) read = every;
            std::vector<float>& of = factors.emplace_back();
            for (std::int64_t b = 0; b < blocks; ++b)
              of.push_back(1 + static_cast<float>(random() % 100) / 20);
            largest.push_back(0);
            for (std::int64_t i = 0; i < count; ++i) {
              if ((read >> i / value_block & 1) == 0) continue;
              largest.back() =
                  std::max(largest.back(), weights[static_cast<std::size_t>(q * count + i)] *
                                               of[static_cast<std::size_t>(i / value_block)]);
            }
            const RoundedWeights rounded =
                round_weights(weights.data() + q * count, read, of.data(), largest.back(),
                              whole.data() + q * count);
            double total = 0;
            for (std::int64_t i = 0; i < std::popcount(read) * value_block; ++i)
              total += whole[static_cast<std::size_t>(q * count + i)];
            EXPECT_NEAR(rounded.total / (total * rounded.unit), 1, 1e-6);
            tiles.push_back(
                {read, whole.data() + q * count, rounded.unit, sums.data() + q * 2 * lanes});
          }
          sum_values(codes.data(), lanes, tiles);
          for (std::int64_t q = 0; q < queries; ++q) {
            const auto at = static_cast<std::size_t>(q);
            const float unit = tiles[at].unit;
            EXPECT_LE(unit, largest[at] / 62);
            for (std::int64_t axis = 0; axis < 2 * lanes; ++axis) {
              double of_whole = 0;
              double want = 0;
              std::int64_t next = 0;
              for (std::int64_t i = 0; i < count; ++i) {
                if ((tiles[at].blocks >> i / value_block & 1) == 0) continue;
                const int byte = codes[static_cast<std::size_t>(i / 4 * lanes + axis % lanes)];
                const int bit = byte >> (axis / lanes * 4 + i % 4) & 1;
                const double weight =
                    static_cast<double>(weights[static_cast<std::size_t>(q * count + i)]) *
                    factors[at][static_cast<std::size_t>(i / value_block)];
                const int rounded = tiles[at].weights[next++];
                EXPECT_LE(std::abs(rounded * static_cast<double>(unit) - weight), 1.01 * unit);
                of_whole += bit * rounded;
                want += bit * weight;
              }
              const float got =
                  sums[static_cast<std::size_t>(q * 2 * lanes + axis % lanes * 2 + axis / lanes)];
              EXPECT_NEAR(got, 1 + of_whole * unit, 1e-5 * (1 + of_whole * unit));
              // A weight is off by up to half a unit, and errors, carried to others of the 64
              // lanes, are of random sign in those that have the bit.
              EXPECT_NEAR(got, 1 + want, 6 * 0.5 * unit * std::sqrt(static_cast<double>(count)) / 2)
                  << lanes << " lanes, axis " << axis << " of query " << q;
            }
          }
        }
      }
    }
  });
}

TEST(CodeKernels, WeightsOfScoresFarBelowAreNothing) {
  on_each_target([] {
    std::vector<float> scores(value_block, -std::numeric_limits<float>::infinity());
    scores[5] = -1e30F;
    scores[17] = 2;
    std::vector<float> weights(value_block);
    WeightSums sums;
    weigh_scores(scores.data(), value_block, 2, weights.data(), &sums);
    EXPECT_EQ(sums.total, 1);
    EXPECT_EQ(sums.squares, 1);
    std::vector<std::uint8_t> whole(value_block, 9);
    const float one = 1;
    const RoundedWeights rounded = round_weights(weights.data(), 1, &one, 1, whole.data());
    EXPECT_GE(rounded.total, 0.99F);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i] > 1, i == 17) << i;
  });
}

}  // namespace
}  // namespace topkv
