// Packing of rows, and the merge of partials, against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gpu/elementwise.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/needs_gpu.h"
#include "tests/reference.h"

namespace topkv::gpu {
namespace {

using Bf16 = std::uint16_t;  // its bits

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr Bf16 untouched = 0xa5a5;  // of a DeviceArray

/// REQUIRES: exact in bf16.
Bf16 bits_of(float value) {
  std::uint32_t wide = 0;
  std::memcpy(&wide, &value, sizeof value);
  return static_cast<Bf16>(wide >> 16);
}

struct Rows {
  std::int64_t tokens, kv_heads, head_dim;
  std::int64_t slots;  // of each head in the target
  std::int64_t first, ring;
  std::int64_t skew;  // elements that arrays start off alignment
};

struct Packed {
  std::vector<Bf16> keys, values;  // [kv_heads, slots, head_dim]
  unsigned long long bad = 0;
};

Packed pack(const Rows& shape, const std::vector<float>& keys, const std::vector<float>& values) {
  const Stream stream;
  const DeviceArray<float> device_keys(keys, shape.skew);
  const DeviceArray<float> device_values(values, shape.skew);
  const std::int64_t stride = shape.slots * shape.head_dim;
  const DeviceArray<Bf16> to_keys(shape.kv_heads * stride, shape.skew);
  const DeviceArray<Bf16> to_values(shape.kv_heads * stride, shape.skew);
  const DeviceArray<unsigned long long> bad(std::vector<unsigned long long>{all_finite});
  PackTarget target;
  target.keys = reinterpret_cast<__nv_bfloat16*>(to_keys.data());
  target.values = reinterpret_cast<__nv_bfloat16*>(to_values.data());
  target.head_stride = stride;
  target.first = shape.first;
  target.ring = shape.ring;
  pack_rows(device_keys.data(), device_values.data(), shape.tokens, shape.kv_heads, shape.head_dim,
            target, bad.data(), stream);
  return {to_keys.read(), to_values.read(), bad.read()[0]};
}

/// What one of the arrays must hold.
std::vector<Bf16> expected_rows(const Rows& shape, const std::vector<float>& x) {
  std::vector<Bf16> out(static_cast<std::size_t>(shape.kv_heads * shape.slots * shape.head_dim),
                        untouched);
  for (std::int64_t t = 0; t < shape.tokens; ++t) {  // later tokens overwrite earlier ones
    const std::int64_t slot = shape.ring > 0 ? (shape.first + t) % shape.ring : t;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        out[(h * shape.slots + slot) * shape.head_dim + i] =
            bits_of(reference::as_bf16(x[(t * shape.kv_heads + h) * shape.head_dim + i]));
      }
    }
  }
  return out;
}

TEST(PackRows, PutsEachHeadsRowsInTheirSlots) {
  TOPKV_NEEDS_GPU();
  for (const Rows& shape : {
           Rows{1, 1, 1, 1, 0, 0, 0},
           Rows{0, 2, 64, 2, 0, 0, 0},
           Rows{5, 3, 7, 6, 0, 0, 0},
           Rows{33, 2, 128, 33, 0, 0, 0},
           Rows{33, 2, 128, 40, 0, 0, 1},
           Rows{9, 4, 80, 16, 13, 16, 0},               // wraps
           Rows{16, 2, 64, 16, 1'000'003, 16, 0},       // the whole ring, far along
           Rows{9, 2, 64, 16, (1LL << 40) + 9, 16, 0},  // positions beyond 32 bits
           Rows{50, 2, 96, 16, 5, 16, 0},               // more than the ring: the last ones stay
           Rows{50, 2, 96, 19, 5, 16, 1},
           Rows{1, 8, 256, 1, 7, 1, 0},
           Rows{300, 70, 4, 300, 0, 0, 0},
       }) {
    SCOPED_TRACE(testing::Message() << shape.tokens << " tokens, " << shape.kv_heads << " heads, "
                                    << shape.head_dim << " wide, ring " << shape.ring);
    const std::int64_t count = shape.tokens * shape.kv_heads * shape.head_dim;
    const auto keys = reference::random_floats(count, 1);
    const auto values = reference::random_floats(count, 2);
    const Packed got = pack(shape, keys, values);
    EXPECT_EQ(got.keys, expected_rows(shape, keys));
    EXPECT_EQ(got.values, expected_rows(shape, values));
    EXPECT_EQ(got.bad, all_finite);
  }
}

TEST(PackRows, NamesTheFirstValueThatCannotBeStored) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t skew : {0, 1}) {
    for (const float value : {std::nanf(""), infinity, -infinity, 3.4e38F, -3.4e38F}) {
      SCOPED_TRACE(value);
      const Rows shape{40, 3, 64, 40, 0, 0, skew};
      const std::size_t count = 40 * 3 * 64;
      std::vector<float> keys(count, 1.0F);
      std::vector<float> values(count, -1.0F);
      values[7000] = value;
      EXPECT_EQ(pack(shape, keys, values).bad, 2U * 7000 + 1);
      keys[7000] = value;
      EXPECT_EQ(pack(shape, keys, values).bad, 2U * 7000);
      values[5003] = value;
      keys[5005] = value;
      EXPECT_EQ(pack(shape, keys, values).bad, 2U * 5003 + 1);
      keys[0] = value;
      EXPECT_EQ(pack(shape, keys, values).bad, 0U);
    }
  }
}

TEST(PackRows, LooksAtTokensThatTheRingDoesNotKeep) {
  TOPKV_NEEDS_GPU();
  const Rows shape{50, 1, 8, 16, 0, 16, 0};
  std::vector<float> keys(50 * 8, 1.0F);
  const std::vector<float> values = keys;
  keys[3] = infinity;  // of token 0, whose slot token 48 takes
  const Packed got = pack(shape, keys, values);
  EXPECT_EQ(got.bad, 6U);
  EXPECT_EQ(got.keys, std::vector<Bf16>(16 * 8, bits_of(1.0F)));
}

TEST(PackRows, TheLargestValueThatRoundsToAFiniteOneIsStored) {
  TOPKV_NEEDS_GPU();
  const Rows shape{1, 1, 4, 1, 0, 0, 0};
  const float below = std::nextafter(0x1.ffp127F, 0.0F);  // 0x1.ffp127 is halfway to infinity
  const std::vector<float> fits(4, below);
  EXPECT_EQ(pack(shape, fits, fits).bad, all_finite);
  const std::vector<float> overflows = {0, 0, 0x1.ffp127F, 0};
  EXPECT_EQ(pack(shape, fits, overflows).bad, 5U);
}

struct Merge {
  std::int64_t count, heads, head_dim;
  std::int64_t skew;
};

/// Merges and compares with float64. lses and into_lse: -infinity for empty partials, whose out is
/// NaN here: it must not be read.
///
/// Tolerance, in units of u = 2^-24: with |lse| <= 10 a weight's exponent errs by 20, exp by 4
/// (2 ulp), the sum of count + 1 weights by count + 1, quotient, product and the sum of products by
/// count + 3; twice, as numerator and denominator both err; relative to the largest |out| of the
/// partials, as the result is their mean. log's own error (an ulp of at most 6) and its sum with
/// the maximum (at most 16) add 28.
void expect_merged(const Merge& shape, const std::vector<float>& lses,
                   const std::vector<float>& into_lse) {
  const Stream stream;
  const std::int64_t width = shape.heads * shape.head_dim;
  const std::int64_t out_stride = width + 8;  // partials need not follow each other closely
  const std::int64_t lse_stride = shape.heads + 3;
  auto outs = reference::random_floats(shape.count * out_stride, 3);
  auto into = reference::random_floats(width, 4);
  std::vector<float> strided(static_cast<std::size_t>(shape.count * lse_stride), std::nanf(""));
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    if (into_lse[h] == -infinity)
      std::fill_n(into.begin() + h * shape.head_dim, shape.head_dim, std::nanf(""));
    for (std::int64_t k = 0; k < shape.count; ++k) {
      const float lse = lses[k * shape.heads + h];
      strided[k * lse_stride + h] = lse;
      if (lse == -infinity) {
        std::fill_n(outs.begin() + k * out_stride + h * shape.head_dim, shape.head_dim,
                    std::nanf(""));
      }
    }
  }

  const DeviceArray<float> device_outs(outs, shape.skew);
  const DeviceArray<float> device_lses(strided);
  const DeviceArray<float> device_into(into, shape.skew);
  const DeviceArray<float> device_into_lse(into_lse);
  merge_partials(device_outs.data(), out_stride, device_lses.data(), lse_stride, shape.count,
                 shape.heads, shape.head_dim, device_into.data(), device_into_lse.data(), stream);
  const auto got = device_into.read();
  const auto got_lse = device_into_lse.read();

  const double u = 1.0 / (1 << 24);
  const double tolerance = (2 * (20.0 + 4 + 2 * static_cast<double>(shape.count) + 4) + 28) * u;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    double sum = 0;  // exp cannot overflow: |lse| <= 10
    double largest = 0;
    std::vector<double> mix(static_cast<std::size_t>(shape.head_dim), 0.0);
    const auto take = [&](float lse, const float* out) {
      if (lse == -infinity) return;
      sum += std::exp(double{lse});
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        mix[i] += std::exp(double{lse}) * out[i];
        largest = std::max(largest, std::abs(double{out[i]}));
      }
    };
    take(into_lse[h], into.data() + h * shape.head_dim);
    for (std::int64_t k = 0; k < shape.count; ++k)
      take(lses[k * shape.heads + h], outs.data() + k * out_stride + h * shape.head_dim);
    if (sum == 0) {
      EXPECT_EQ(got_lse[h], -infinity) << "head " << h;
      continue;
    }
    EXPECT_NEAR(got_lse[h], std::log(sum), tolerance) << "head " << h;
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      ASSERT_NEAR(got[h * shape.head_dim + i], mix[i] / sum, largest * tolerance)
          << "head " << h << ", " << i;
    }
  }
}

std::vector<float> lses_of(std::int64_t count, unsigned seed, double empty_share) {
  auto lses = reference::random_floats(count, seed, 4.0F);
  const auto dice = reference::random_floats(count, seed + 1);
  for (std::size_t i = 0; i < lses.size(); ++i) {
    lses[i] = std::clamp(lses[i], -10.0F, 10.0F);
    if (dice[i] < empty_share) lses[i] = -infinity;
  }
  return lses;
}

constexpr double none_empty = -100;  // below every dice
constexpr double half_empty = 0;
constexpr double all_empty = 100;

TEST(MergePartials, IsTheSoftmaxOverTheUnion) {
  TOPKV_NEEDS_GPU();
  for (const Merge& shape : {Merge{0, 3, 64, 0}, Merge{1, 1, 1, 0}, Merge{1, 32, 128, 0},
                             Merge{2, 5, 7, 0}, Merge{3, 9, 80, 1}, Merge{31, 4, 256, 0},
                             Merge{33, 4, 96, 1}, Merge{300, 2, 64, 0}, Merge{2, 3000, 16, 0}}) {
    for (const double share : {none_empty, half_empty}) {
      SCOPED_TRACE(testing::Message() << shape.count << " partials, " << shape.heads << " heads, "
                                      << shape.head_dim << " wide, " << share);
      expect_merged(shape, lses_of(shape.count * shape.heads, 5, share),
                    lses_of(shape.heads, 7, share));
    }
  }
}

TEST(MergePartials, TheEmptyPartialIsTheIdentityExactly) {
  TOPKV_NEEDS_GPU();
  const Stream stream;
  const auto out = reference::random_floats(4 * 64, 9);
  const std::vector<float> lse = {0.3F, -7.0F, 100.0F, -200.0F};
  const DeviceArray<float> no_outs(std::vector<float>(3 * 4 * 64, std::nanf("")));
  const DeviceArray<float> no_lses(std::vector<float>(3 * 4, -infinity));
  const DeviceArray<float> into_out(out);
  const DeviceArray<float> into_lse(lse);
  merge_partials(no_outs.data(), 4 * 64, no_lses.data(), 4, 3, 4, 64, into_out.data(),
                 into_lse.data(), stream);
  EXPECT_EQ(into_out.read(), out);
  EXPECT_EQ(into_lse.read(), lse);
  // And the other way round.
  const DeviceArray<float> outs(out);
  const DeviceArray<float> lses(lse);
  const DeviceArray<float> empty_out(std::vector<float>(4 * 64, 0.0F));
  const DeviceArray<float> empty_lse(std::vector<float>(4, -infinity));
  merge_partials(outs.data(), 4 * 64, lses.data(), 4, 1, 4, 64, empty_out.data(), empty_lse.data(),
                 stream);
  EXPECT_EQ(empty_out.read(), out);
  EXPECT_EQ(empty_lse.read(), lse);
}

TEST(MergePartials, NothingButEmptyPartialsStaysEmpty) {
  TOPKV_NEEDS_GPU();
  expect_merged({4, 6, 64, 0}, lses_of(24, 5, all_empty), lses_of(6, 7, all_empty));
}

}  // namespace
}  // namespace topkv::gpu
