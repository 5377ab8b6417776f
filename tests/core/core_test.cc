// The SIMD kernels against plain loops in float64, at every tail length and dtype.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/math/dot.h"
#include "src/core/math/key_bias.h"
#include "src/core/math/row_format.h"
#include "src/core/math/tile_dot.h"
#include "src/core/math/topk.h"
#include "src/core/math/vector_math.h"
#include "src/core/math/weighted_sum.h"
#include "src/core/text/byte_text.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
const DType stored_dtypes[] = {DType::f32, DType::f16, DType::bf16, DType::q8, DType::q4};

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

/// The stored value nearest to x, found with arithmetic alone: mantissa bits by scaling.
double rounded(double x, int mantissa_bits) {
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, mantissa_bits + 1)),
                    exponent - mantissa_bits - 1);
}

TEST(ByteText, IsLegibleAtEveryScale) {
  EXPECT_EQ(byte_text(0), "0 B");
  EXPECT_EQ(byte_text(1023), "1023 B");
  EXPECT_EQ(byte_text(1536), "1.5 KiB");
  EXPECT_EQ(byte_text((std::int64_t{1} << 30) - 1), "1.0 GiB");
  EXPECT_EQ(byte_text(std::int64_t{1} << 52), "4.0 PiB");
  EXPECT_EQ(byte_text(std::numeric_limits<std::int64_t>::max()), "8.0 EiB");
}

TEST(OutOfMemoryText, TellsSmallSizesApart) {
  EXPECT_STREQ(OutOfMemory("rows", 2048, 1023, "free some").what(),
               "rows: 2.0 KiB (2048 bytes) wanted, 1023 bytes available; free some");
}

TEST(Convert, RoundTripRoundsToNearestEvenAtEveryLength) {
  for (const DType dtype : dtypes) {
    const int bits = dtype == DType::f32 ? 23 : dtype == DType::f16 ? 10 : 7;
    for (std::int64_t n = 0; n < 70; ++n) {
      const auto in = random_floats(n, static_cast<unsigned>(n));
      std::vector<std::byte> stored(static_cast<std::size_t>(n * bytes_of(dtype)) + 1);
      std::vector<float> out(static_cast<std::size_t>(n));
      from_float(in.data(), n, dtype, stored.data());
      to_float(stored.data(), dtype, n, out.data());
      for (std::int64_t i = 0; i < n; ++i)
        EXPECT_EQ(out[i], rounded(in[i], bits)) << name_of(dtype);
    }
  }
}

TEST(Convert, HalfwayCasesOfBf16GoToEven) {
  const std::vector<float> in(40, 1.0F + 1.0F / 256);  // halfway between 1 and 1 + 1/128
  std::vector<std::byte> stored(80);
  std::vector<float> out(40);
  from_float(in.data(), 40, DType::bf16, stored.data());
  to_float(stored.data(), DType::bf16, 40, out.data());
  for (const float x : out) EXPECT_EQ(x, 1.0F);
}

TEST(Convert, FirstNotFiniteFindsEveryPlace) {
  for (std::int64_t n = 1; n < 40; ++n) {
    EXPECT_EQ(first_not_finite(random_floats(n, 1).data(), n), -1);
    for (std::int64_t at = 0; at < n; ++at) {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        auto values = random_floats(n, 2);
        values[static_cast<std::size_t>(at)] = bad;
        EXPECT_EQ(first_not_finite(values.data(), n), at);
      }
    }
  }
}

TEST(Dot, EveryShapeEqualsPlainLoops) {
  for (const DType dtype : stored_dtypes) {
    for (const std::int64_t dim : {1, 7, 8, 16, 31, 64, 80, 96, 128, 257}) {
      for (const std::int64_t queries : {1, 2, 3, 4, 5, 9}) {
        const std::int64_t count = 11;
        const std::int64_t stride = vector_bytes(dtype, dim) * 2 + 6;  // odd strides must work too
        const auto q = random_floats(queries * dim, 3);
        const auto k = random_floats(count * dim, 4);
        std::vector<std::byte> keys(static_cast<std::size_t>(stride * count), std::byte{0xff});
        std::vector<float> widened(static_cast<std::size_t>(count * dim));
        std::vector<float> channels(static_cast<std::size_t>(dim), 1.0F);
        channels.back() = 8;
        std::vector<float> bias(static_cast<std::size_t>(3 * dim), 0.5F);
        const bool blocks = in_blocks(dtype);
        const KeyView view{keys.data(),
                           dtype,
                           count,
                           dim,
                           stride,
                           blocks ? channels.data() : nullptr,
                           blocks && queries % 2 == 0 ? bias.data() : nullptr};
        for (std::int64_t r = 0; r < count; ++r) {
          encode(&k[r * dim], dim, dtype, view.channels, &keys[r * stride], bias_at(view, r));
          decode(view, r, &widened[r * dim]);
        }
        std::vector<float> scores(static_cast<std::size_t>(queries * 16), -1);
        dot_block(q.data(), queries, view, scores.data(), 16);
        const std::vector<std::int64_t> at = {10, 3, 3, 0, 7};
        std::vector<float> gathered(static_cast<std::size_t>(queries * 8), -1);
        dot_gather(q.data(), queries, view, at.data(), 5, gathered.data(), 8);
        for (std::int64_t i = 0; i < queries; ++i) {
          for (std::int64_t r = 0; r < count; ++r) {
            double want = 0;
            double size = 0;
            for (std::int64_t j = 0; j < dim; ++j) {
              const double product = double{q[i * dim + j]} * widened[r * dim + j];
              want += product;
              size += std::abs(product);
            }
            const double bound = 1e-6 * size;
            EXPECT_NEAR(scores[i * 16 + r], want, bound);
            EXPECT_NEAR(dot(&q[i * dim], view, r), want, bound);
            for (std::size_t g = 0; g < at.size(); ++g) {
              if (at[g] != r) continue;
              EXPECT_EQ(gathered[i * 8 + g], scores[i * 16 + r]);
            }
          }
          EXPECT_EQ(scores[i * 16 + count], -1) << "wrote past the block";
          EXPECT_EQ(gathered[i * 8 + 5], -1) << "wrote past the block";
        }
        double want = 0;
        for (std::int64_t j = 0; j < dim; ++j) want += double{widened[j]} * widened[dim + j];
        EXPECT_NEAR(dot_stored(view, 0, 1), want, 1e-5 * static_cast<double>(dim));
      }
    }
  }
}

TEST(WeightedSum, EveryShapeEqualsPlainLoops) {
  for (const DType dtype : stored_dtypes) {
    for (const std::int64_t dim : {1, 7, 16, 33, 80, 128}) {
      for (const std::int64_t sums : {1, 2, 3, 4, 7, 8, 13}) {
        for (const std::int64_t count : {0, 1, 5, 33}) {
          const auto given = random_floats(40 * dim, 3);
          std::vector<float> vectors(given.size());  // as stored
          const std::int64_t stride = vector_bytes(dtype, dim) + 2;
          std::vector<std::byte> stored(static_cast<std::size_t>(40 * stride));
          const KeyView view{stored.data(), dtype, 40, dim, stride};
          for (std::int64_t i = 0; i < 40; ++i) {
            encode(&given[i * dim], dim, dtype, nullptr, &stored[i * stride]);
            decode(view, i, &vectors[i * dim]);
          }
          const auto weights = random_floats(sums * (count + 3), 4);
          auto out = random_floats(sums * dim, 5);
          std::vector<std::int64_t> positions;
          for (std::int64_t i = 0; i < count; ++i) positions.push_back(i * 7 % 40);
          std::vector<double> want(out.begin(), out.end());
          for (std::int64_t s = 0; s < sums; ++s) {
            for (std::int64_t i = 0; i < count; ++i) {
              for (std::int64_t j = 0; j < dim; ++j) {
                want[static_cast<std::size_t>(s * dim + j)] +=
                    double{weights[static_cast<std::size_t>(s * (count + 3) + i)]} *
                    vectors[static_cast<std::size_t>(positions[static_cast<std::size_t>(i)] * dim +
                                                     j)];
              }
            }
          }
          add_weighted({view, positions.data(), count, weights.data(), count + 3, sums},
                       out.data());
          for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(out[i], want[i], 1e-5 * (1 + std::abs(want[i])))
                << dim << " " << sums << " " << count;
          }
        }
      }
    }
  }
}

TEST(TileQueries, ScoreKeysAsPlainLoopsDo) {
  if (!TileQueries::usable(DType::bf16, 64, 3)) GTEST_SKIP() << "no AMX on this machine";
  for (const std::int64_t dim : {32, 64, 96, 128, 256}) {
    for (const std::int64_t queries : {3, 7, 8, 9, 17}) {
      for (const std::int64_t keys : {1, 15, 16, 31, 32, 33, 512, 527}) {
        const auto query = random_floats(queries * dim, 1);
        const auto key = random_floats(keys * dim, 2);
        const std::int64_t stride = dim * 2 + (keys % 2) * 2;  // keys need not lie dense
        std::vector<std::byte> stored(static_cast<std::size_t>(keys * stride));
        for (std::int64_t r = 0; r < keys; ++r) {
          from_float(key.data() + r * dim, dim, DType::bf16, stored.data() + r * stride);
        }
        TileQueries tiles;
        tiles.prepare(query.data(), queries, dim);
        const std::int64_t room = keys + 3;
        std::vector<float> scores(static_cast<std::size_t>(queries * room), -7.0F);
        tiles.dot_block(stored.data(), stride, keys, scores.data(), room);
        for (std::int64_t q = 0; q < queries; ++q) {
          for (std::int64_t r = 0; r < keys; ++r) {
            double want = 0;
            double size = 0;
            for (std::int64_t i = 0; i < dim; ++i) {
              const double product = double{query[q * dim + i]} * rounded(key[r * dim + i], 7);
              want += product;
              size += std::abs(product);
            }
            // float32 sums of 3 * dim exact products.
            ASSERT_NEAR(scores[q * room + r], want, size * 3 * dim * 0x1p-24)
                << "dim " << dim << ", query " << q << " of " << queries << ", key " << r << " of "
                << keys;
          }
          for (std::int64_t r = keys; r < room; ++r) ASSERT_EQ(scores[q * room + r], -7.0F);
        }
      }
    }
  }
}

TEST(VectorMath, EqualsPlainLoopsAtEveryLength) {
  for (std::int64_t n = 1; n < 70; ++n) {
    const auto x = random_floats(n, 5);
    const auto y = random_floats(n, 6);
    EXPECT_EQ(max_of(x.data(), n), *std::max_element(x.begin(), x.end()));

    auto e = x;
    const float sum = exp_shifted(e.data(), n, 1.5F);
    double want_sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double want = std::exp(double{x[i]} - 1.5);
      want_sum += want;
      EXPECT_NEAR(e[i], want, 2e-6 * want);
    }
    EXPECT_NEAR(sum, want_sum, 2e-6 * want_sum);

    auto gate = x;
    silu_multiply(gate.data(), y.data(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(gate[i], x[i] / (1 + std::exp(-double{x[i]})) * y[i],
                  1e-6 * (1 + std::abs(x[i] * y[i])));
    }

    gate = x;
    gelu_multiply(gate.data(), y.data(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = x[i];
      const double bent = std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
      EXPECT_NEAR(gate[i], 0.5 * g * (1 + std::tanh(bent)) * y[i],
                  1e-6 * (1 + std::abs(x[i] * y[i])));
    }

    std::vector<float> normed(static_cast<std::size_t>(n));
    rms_norm(x.data(), y.data(), n, 1e-5F, normed.data());
    double square = 0;
    for (const float v : x) square += double{v} * v;
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(normed[i], x[i] / std::sqrt(square / static_cast<double>(n) + 1e-5) * y[i], 1e-5);
    }
  }
}

TEST(VectorMath, GatesFarBelowZeroAreShut) {
  for (const float far : {-87.0F, -88.5F, -104.0F, -120.0F, -200.0F, -1000.0F, -1e30F}) {
    const std::vector<float> x(37, far);
    const std::vector<float> ones(37, 1.0F);
    auto silu = x;
    silu_multiply(silu.data(), ones.data(), 37);
    auto gelu = x;
    gelu_multiply(gelu.data(), ones.data(), 37);
    auto clamped = x;
    clamped_silu_multiply(clamped.data(), ones.data(), 7, 37, clamped.data());
    for (const auto& gates : {silu, gelu, clamped}) {
      for (const float gate : gates) EXPECT_NEAR(gate / far, 0, 1e-37) << far;
    }
  }
}

// Parallel loops divide arrays anywhere, and a token has one answer whatever stands beside it.
TEST(VectorMath, AnElementHasOneResultWhereverArraysAreDivided) {
  constexpr std::int64_t n = 61;
  const auto x = random_floats(n, 9);
  const auto y = random_floats(n, 10);
  const auto of = [&](const auto& function) {
    auto whole = x;
    function(whole.data(), y.data(), n);
    for (std::int64_t cut = 1; cut < n; ++cut) {
      auto parts = x;
      function(parts.data(), y.data(), cut);
      function(parts.data() + cut, y.data() + cut, n - cut);
      ASSERT_EQ(parts, whole) << cut;
    }
  };
  of(silu_multiply);
  of(gelu_multiply);
  of([](float* gate, const float* up, std::int64_t count) {
    clamped_silu_multiply(gate, up, 0.5F, count, gate);
  });
  of([](float* a, const float*, std::int64_t count) { soft_cap(a, count, 2.0F); });
}

TEST(VectorMath, RotatePairsTurnsNeighbours) {
  for (const std::int64_t pairs : {1, 3, 16, 37}) {
    const auto angles = reference::random_floats(pairs, 7, 3.0F);
    std::vector<float> cosines, sines;
    for (const float angle : angles) {
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    const auto x = reference::random_floats(2 * pairs, 8);
    auto got = x;
    rotate_pairs(got.data(), 2 * pairs, cosines.data(), sines.data());
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = sines[i];
      const double tolerance = 3 * std::ldexp(std::abs(a) + std::abs(b), -24);
      EXPECT_NEAR(got[2 * i], a * c - b * s, tolerance);
      EXPECT_NEAR(got[2 * i + 1], b * c + a * s, tolerance);
    }
  }
}

TEST(VectorMath, SoftCapEqualsFloat64AtEveryLengthAndSize) {
  for (const float cap : {0.5F, 30.0F}) {
    for (const std::int64_t count : {1, 7, 16, 37}) {
      for (const float size : {1e-4F, 1.0F, 100.0F}) {
        const auto x = reference::random_floats(count, 5, size);
        auto got = x;
        soft_cap(got.data(), count, cap);
        for (std::int64_t i = 0; i < count; ++i) {
          const double want = double{cap} * std::tanh(double{x[i]} / cap);
          EXPECT_NEAR(got[i], want, 1e-6 * std::abs(want)) << x[i];
        }
      }
    }
    std::vector<float> ends(20, std::numeric_limits<float>::max());
    std::fill(ends.begin() + 9, ends.end(), -std::numeric_limits<float>::infinity());
    soft_cap(ends.data(), 20, cap);
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(ends[i], i < 9 ? cap : -cap) << i;
  }
}

TEST(VectorMath, ExpOfMinusInfinityIsZero) {
  std::vector<float> x(33, -std::numeric_limits<float>::infinity());
  x[20] = 0;
  EXPECT_EQ(exp_shifted(x.data(), 33, 0), 1.0F);
  EXPECT_EQ(x[0], 0.0F);
  EXPECT_EQ(x[32], 0.0F);
}

TEST(TopKeeper, KeepsTheBestWithTiesToTheLowerPosition) {
  TopKeeper keeper;
  keeper.reset(3);
  for (const auto& [score, position] : std::vector<std::pair<float, std::int64_t>>{
           {1, 9}, {2, 8}, {2, 1}, {0, 0}, {2, 5}, {1, 2}}) {
    keeper.push(score, position);
  }
  const auto best = keeper.sorted();
  ASSERT_EQ(best.size(), 3U);
  EXPECT_EQ(best[0].position, 1);
  EXPECT_EQ(best[1].position, 5);
  EXPECT_EQ(best[2].position, 8);
}

}  // namespace
}  // namespace topkv
