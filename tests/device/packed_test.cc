// Packed weights on the host: products of every packing, and rounding to them, against float64.
//
// u is float32's unit roundoff, 2^-24.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/math/quantise.h"
#include "src/device/compute_device.h"
#include "tests/support/packed_case.h"
#include "tests/support/reference.h"

namespace topkv {
namespace {

constexpr double roundoff = 1.0 / (1 << 24);

/// Runs the body with every level of x86 that this machine has.
template <class Body>
void each_target(const Body& body) {
  const std::int64_t all = hwy::SupportedTargets();
  for (std::int64_t rest = all; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

// A sum of k products in float32, in any order, errs by at most k u of the sum of their sizes; a
// weight that is unpacked first is rounded once more, the scale of a group and the offset add two.
TEST(PackedProduct, MatchesFloat64ForEveryPackingSizeAndNumberOfTokens) {
  ComputeDevice& device = *host_device();
  each_target([&] {
    for (const packed_case::Case& of : packed_case::cases()) {
      packed_case::Packed packed = packed_case::random_packed(of, 1);
      const Buffer block = packed_case::put(device, packed);
      ASSERT_EQ(packed.matrix.bytes(), block.bytes());
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 17, 300}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << tokens << " tokens, [" << of.out << ", " << of.in << "], "
                       << packed_case::name_of(of.packing) << " in groups of " << of.group
                       << (accumulate ? ", added" : ""));
          const auto x = reference::random_floats(tokens * of.in, 2);
          const auto before = reference::random_floats(tokens * of.out, 3);
          auto out = before;
          device.matmul(packed.matrix, reinterpret_cast<const std::byte*>(x.data()), tokens,
                        accumulate, out.data());
          for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t o = 0; o < of.out; ++o) {
              const double added = accumulate ? before[t * of.out + o] : 0.0;
              const auto want = packed_case::row_product(packed, o, x.data() + t * of.in);
              ASSERT_NEAR(out[t * of.out + o], added + want.sum,
                          static_cast<double>(of.in + 4) * roundoff * (std::abs(added) + want.size))
                  << "token " << t << ", output " << o;
            }
          }
        }
      }
    }
  });
}

// Codes of 4 bits meet activations that share a power of two: far from the largest they are still
// there, to 2^-22 of that one, and what is not finite is not hidden.
TEST(PackedProduct, OfNibblesCountsActivationsOfEverySize) {
  ComputeDevice& device = *host_device();
  each_target([&] {
    for (const packed_case::Case& of : {packed_case::Case{Packing::int4, 6, 384, 128, true},
                                        {Packing::int4, 5, 352, 32, true},
                                        {Packing::fp4, 6, 384, 32, false},
                                        {Packing::fp4, 5, 384, 384, false}}) {
      packed_case::Packed packed = packed_case::random_packed(of, 9);
      const Buffer block = packed_case::put(device, packed);
      const auto product = [&](const std::vector<float>& x) {
        std::vector<float> out(static_cast<std::size_t>(of.out));
        device.matmul(packed.matrix, reinterpret_cast<const std::byte*>(x.data()), 1, false,
                      out.data());
        return out;
      };
      for (const float largest : {0.0F, 0x1p-90F, 1.0F, 0x1p100F}) {
        SCOPED_TRACE(testing::Message()
                     << packed_case::name_of(of.packing) << ", largest " << largest);
        const auto x = packed_case::of_every_size(reference::random_floats(of.in, 10), largest);
        const auto got = product(x);
        const double rounding = 4 * roundoff * packed_case::largest_of(x);
        for (std::int64_t o = 0; o < of.out; ++o) {
          const auto want = packed_case::row_product(packed, o, x.data());
          // Codes are met 8 or 12 too large, and less that of the sum.
          ASSERT_NEAR(
              got[o], want.sum,
              4 * static_cast<double>(of.in + 4) * roundoff * want.size + rounding * want.weights)
              << o;
        }
      }
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        auto x = reference::random_floats(of.in, 11);
        x[200] = bad;
        for (const float value : product(x)) EXPECT_FALSE(std::isfinite(value)) << bad;
      }
    }
  });
}

TEST(PackedProduct, EmbeddingGivesTheRowsThatTokensName) {
  ComputeDevice& device = *host_device();
  each_target([&] {
    for (const packed_case::Case& of : packed_case::cases()) {
      packed_case::Packed packed = packed_case::random_packed(of, 4);
      const Buffer block = packed_case::put(device, packed);
      const auto last = static_cast<Token>(of.out - 1);
      const std::vector<Token> tokens = {last, 0, last / 2, last};
      std::vector<float> out(tokens.size() * static_cast<std::size_t>(of.in));
      device.embed(packed.matrix, tokens, out.data());
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        for (std::int64_t i = 0; i < of.in; ++i) {
          const std::int64_t at = tokens[t] * of.in + i;
          ASSERT_NEAR(out[t * of.in + i], packed.values[at], 2 * roundoff * packed.sizes[at]) << at;
        }
      }
    }
  });
}

/// A row, quantised: its values again, and its scales.
struct Rounded {
  std::vector<double> values;
  std::vector<float> scales;
};

Rounded round_row(const std::vector<float>& row, Packing packing, std::int64_t group) {
  const bool offsets = packing == Packing::int4;
  Matrix form{nullptr, DType::f32, 1,      static_cast<std::int64_t>(row.size()),
              packing, group,      offsets};
  std::vector<std::byte> block(static_cast<std::size_t>(form.bytes()));
  const auto factors = [&](std::int64_t at) { return reinterpret_cast<float*>(block.data() + at); };
  quantise_row(
      form, row.data(),
      {block.data(), factors(form.scales_at()), offsets ? factors(form.offsets_at()) : nullptr});
  form.data = block.data();
  return {packed_case::values_of(form), {form.scales(), form.scales() + form.groups()}};
}

double squared_error(const std::vector<float>& row, const std::vector<double>& values,
                     std::int64_t begin, std::int64_t end) {
  double sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += std::pow(row[i] - values[i], 2);
  return sum;
}

/// Rows as they are and as they ought not to be.
std::vector<std::vector<float>> rows(std::int64_t size) {
  std::vector<std::vector<float>> all;
  for (const unsigned seed : {1U, 2U, 3U}) {
    all.push_back(reference::random_floats(size, seed, 0.05F));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    std::vector<float> row(static_cast<std::size_t>(size));
    for (float& x : row) x = normal(random);
    all.push_back(row);
    row[static_cast<std::size_t>(size / 3)] = 1.5F;  // one far out
    all.push_back(row);
    for (float& x : row) x = std::abs(x) + 1;  // far from zero
    all.push_back(row);
  }
  all.emplace_back(static_cast<std::size_t>(size), 0.0F);
  all.emplace_back(static_cast<std::size_t>(size), -0.7F);
  all.emplace_back(static_cast<std::size_t>(size), 1e-38F);
  all.emplace_back(static_cast<std::size_t>(size), 1e15F);
  std::vector<float> wide(static_cast<std::size_t>(size), 1e-20F);
  wide.front() = -1e15F;
  wide.back() = 1e15F;
  all.push_back(wide);
  return all;
}

// Half a step of a scale that lets the largest weight be 127, and a rounding each of the scale and
// of its inverse.
TEST(Quantise, Int8IsOffByHalfAStepOfTheRowAtMost) {
  each_target([] {
    for (const std::int64_t size : {1, 13, 128, 1000}) {
      for (const std::vector<float>& row : rows(size)) {
        double largest = 0;
        for (const float x : row) largest = std::max(largest, std::abs(double{x}));
        const Rounded rounded = round_row(row, Packing::int8, size);
        for (std::int64_t i = 0; i < size; ++i) {
          ASSERT_LE(std::abs(row[i] - rounded.values[i]),
                    largest / 127 * (0.5 + 127 * 4 * roundoff) + 1e-30)
              << i << " of " << size;
        }
      }
    }
  });
}

/// The least squared error of 16 codes over finely searched scales, in float64: each set of codes
/// with the scale and offset that suit it best.
double best_error(const std::vector<float>& row, std::int64_t begin, std::int64_t end) {
  const auto n = static_cast<double>(end - begin);
  const auto [low_at, high_at] = std::minmax_element(row.begin() + begin, row.begin() + end);
  const double low = *low_at;
  const double high = *high_at;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= 400; ++i) {
    const double shrink = 0.4 + 0.7 * i / 400;
    const double scale = (high - low) / 15 * shrink;
    const double zero = (high + low + scale) / 2;
    if (scale == 0) continue;
    double codes = 0, squares = 0, products = 0, total = 0, weights = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      const double code = std::clamp(std::nearbyint((row[j] - zero) / scale), -8.0, 7.0);
      codes += code;
      squares += code * code;
      products += code * row[j];
      total += row[j];
      weights += double{row[j]} * row[j];
    }
    const double spread = squares - codes * codes / n;
    const double along = products - codes * total / n;
    if (spread > 0)
      best = std::min(best, std::max(weights - total * total / n - along * along / spread, 0.0));
  }
  return best;
}

// 24 scales against 401: within 6 % of these.
TEST(Quantise, Int4FindsNearlyTheLeastSquaredErrorOfAGroup) {
  each_target([] {
    for (const std::int64_t group : {32, 64, 128}) {
      const std::int64_t size = 2 * group;
      for (const std::vector<float>& row : rows(size)) {
        const Rounded rounded = round_row(row, Packing::int4, group);
        for (std::int64_t begin = 0; begin < size; begin += group) {
          double largest = 0;
          for (std::int64_t i = begin; i < begin + group; ++i)
            largest = std::max(largest, std::abs(double{row[i]}));
          const double error = squared_error(row, rounded.values, begin, begin + group);
          const double best = best_error(row, begin, begin + group);
          // Scales and offsets are rounded to float32.
          const double rounding = static_cast<double>(group) * std::pow(8 * roundoff * largest, 2);
          EXPECT_LE(error, (std::isinf(best) ? 0.0 : 1.06 * best) + rounding + 1e-60)
              << "group of " << group << ", largest " << largest;
        }
      }
    }
  });
}

// Never worse than the plain way: the range in 15 steps, each weight off by half of one.
TEST(Quantise, Int4WithOffsetIsNoWorseThanStepsOverTheRange) {
  for (const std::vector<float>& row : rows(128)) {
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const double step = (double{*high} - *low) / 15;
    double plain = 0;
    for (const float x : row) {
      plain += std::pow(x - (*low + step * (step > 0 ? std::nearbyint((x - *low) / step) : 0)), 2);
    }
    const Rounded rounded = round_row(row, Packing::int4, 128);
    double largest = std::max(std::abs(double{*low}), std::abs(double{*high}));
    EXPECT_LE(squared_error(row, rounded.values, 0, 128),
              1.001 * plain + 128 * std::pow(8 * roundoff * largest, 2) + 1e-60);
  }
}

}  // namespace
}  // namespace topkv
