// Packing of rows against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gpu/network/elementwise.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"

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

}  // namespace
}  // namespace topkv::gpu
