// The memory-bound kernels against plain loops in float64.
//
// u is float32's unit roundoff, 2^-24, and v bf16's, 2^-8: the most that one rounding errs by,
// relative to the result.
#include "gpu/network/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/kernels/device_array.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"

namespace topkv::gpu {
namespace {

using Bf16 = std::uint16_t;  // its bits

constexpr double u = 1.0 / (1 << 24);
constexpr double v = 1.0 / (1 << 8);
constexpr float infinity = std::numeric_limits<float>::infinity();
const float nan = std::nanf("");

float value_of(Bf16 bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
/// REQUIRES: exact in bf16.
Bf16 bits_of(float value) {
  std::uint32_t wide = 0;
  std::memcpy(&wide, &value, sizeof value);
  return static_cast<Bf16>(wide >> 16);
}
__nv_bfloat16* bf16(const DeviceArray<Bf16>& array) {
  return reinterpret_cast<__nv_bfloat16*>(array.data());
}

struct Shape {
  std::int64_t rows, width;
  std::int64_t skew;  // elements that arrays start off alignment
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const std::int64_t rows : {0, 1, 3, 70}) {
    for (const std::int64_t width : {1, 7, 64, 384, 1028, 4099}) {
      for (const std::int64_t skew : {0, 1}) all.push_back({rows, width, skew});
    }
  }
  return all;
}

/// body(shape, elements, stream) for each of the shapes.
template <class Body>
void each_shape(const Body& body) {
  const Stream stream;
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(testing::Message()
                 << shape.rows << " x " << shape.width << ", skew " << shape.skew);
    body(shape, shape.rows * shape.width, stream);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RowKernels, EmbedCopiesTheTokensRows) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    constexpr std::int64_t vocabulary = 9;
    const auto table = reference::random_bf16(vocabulary * shape.width, 1);
    std::vector<Bf16> bits(table.size());
    std::transform(table.begin(), table.end(), bits.begin(), bits_of);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows));
    for (std::size_t t = 0; t < tokens.size(); ++t)
      tokens[t] = static_cast<std::int32_t>((t * 5 + 8) % vocabulary);

    const DeviceArray<Bf16> device_table(bits, shape.skew);
    const DeviceArray<std::int32_t> device_tokens(tokens, shape.skew);
    const DeviceArray<float> out(count, shape.skew);
    embed(bf16(device_table), device_tokens.data(), shape.rows, shape.width, out.data(), stream);
    const auto got = out.read();
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(got[i], table[tokens[i / shape.width] * shape.width + i % shape.width]) << i;
    }
  });
}

TEST(RowKernels, AddBiasAddsItToEveryRow) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    const auto bias = reference::random_floats(shape.width, 2);
    const auto x = reference::random_floats(count, 3);
    const DeviceArray<float> device_bias(bias, shape.skew);
    const DeviceArray<float> device_x(x, shape.skew);
    add_bias(device_bias.data(), shape.rows, shape.width, device_x.data(), stream);
    const auto got = device_x.read();
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(got[i], x[i] + bias[i % shape.width]) << i;
  });
}

// A sum of n rounded squares, in any order, errs by at most n u; the root halves that. Six more
// roundings follow: mean, epsilon, root, quotient, two products; 8 leaves room for second order.
TEST(RowKernels, RmsNormDividesByTheRootOfTheMeanSquare) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    constexpr float epsilon = 1e-5F;
    const auto weight = reference::random_floats(shape.width, 4);
    const auto x = reference::random_floats(count, 5, 3.0F);
    const DeviceArray<float> device_weight(weight, shape.skew);
    const DeviceArray<float> device_x(x, shape.skew);
    const DeviceArray<Bf16> rounded(count, shape.skew);
    rms_norm(device_x.data(), device_weight.data(), shape.rows, shape.width, epsilon, bf16(rounded),
             stream);
    rms_norm(device_x.data(), device_weight.data(), shape.rows, shape.width, epsilon,
             device_x.data(), stream);  // in place
    const auto in_place = device_x.read();
    const auto got = rounded.read();
    const double tolerance = (static_cast<double>(shape.width) / 2 + 8) * u;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < shape.width; ++i)
        squares += std::pow(double{x[row * shape.width + i]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(shape.width) + epsilon);
      for (std::int64_t i = 0; i < shape.width; ++i) {
        const std::int64_t at = row * shape.width + i;
        const double expected = x[at] * scale * weight[i];
        ASSERT_NEAR(in_place[at], expected, std::abs(expected) * tolerance) << at;
        ASSERT_NEAR(value_of(got[at]), expected,
                    std::abs(expected) * (tolerance + v * (1 + tolerance)))
            << at;
      }
    }
  });
}

// Negative gates beyond 88 overflow exp in float32, and the result is 0 where float64 still has
// less than 1e-36 times up. Else: exp errs by 2 ulp (CUDA's bound; an ulp is at most 2 u), three
// roundings follow, then one to bf16; bf16's own subnormals end at 2^-133.
TEST(RowKernels, SiluMultiplyGatesUp) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    auto gate = reference::random_floats(count, 6, 8.0F);
    const auto up = reference::random_floats(count, 7);
    if (count > 3) {
      gate[0] = -1000.0F;
      gate[1] = 1000.0F;
      gate[2] = 0.0F;
    }
    const DeviceArray<float> device_gate(gate, shape.skew);
    const DeviceArray<float> device_up(up, shape.skew);
    const DeviceArray<Bf16> out(count, shape.skew);
    silu_multiply(device_gate.data(), device_up.data(), count, bf16(out), stream);
    const auto got = out.read();
    for (std::int64_t i = 0; i < count; ++i) {
      const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
      ASSERT_NEAR(
          value_of(got[i]), expected,
          std::abs(expected) * (v + 8 * u) + 1e-36 * std::abs(up[i]) + std::ldexp(1.0, -133))
          << i;
    }
  });
}

TEST(RowKernels, ReluMultiplyIsUpAboveZero) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    const auto gate = reference::random_floats(count, 6, 8.0F);
    const auto up = reference::random_floats(count, 7);
    const DeviceArray<float> device_gate(gate, shape.skew);
    const DeviceArray<float> device_up(up, shape.skew);
    const DeviceArray<Bf16> out(count, shape.skew);
    relu_multiply(device_gate.data(), device_up.data(), count, bf16(out), stream);
    const auto got = out.read();
    relu_multiply(device_up.data(), device_up.data(), count, bf16(out), stream);
    const auto squares = out.read();
    for (std::int64_t i = 0; i < count; ++i) {
      const double expected = std::max(0.0, double{gate[i]}) * up[i];
      ASSERT_NEAR(value_of(got[i]), expected, std::abs(expected) * (v + u)) << i;
      const double square = std::max(0.0, double{up[i]}) * up[i];
      ASSERT_NEAR(value_of(squares[i]), square, square * (v + u)) << i;
    }
  });
}

TEST(RowKernels, ToBf16RoundsToNearestEven) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    auto x = reference::random_floats(count, 8);
    const std::vector<float> special = {
        0.0F, -0.0F,   infinity,    -infinity,
        nan,  3.4e38F, 1.00390625F, 1.01171875F};  // the last two are halfway: down, up
    for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 8); ++i) x[i] = special[i];
    const DeviceArray<float> device_x(x, shape.skew);
    const DeviceArray<Bf16> out(count, shape.skew);
    to_bf16(device_x.data(), count, bf16(out), stream);
    const auto got = out.read();
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(value_of(got[i]))) << i;
      } else {
        ASSERT_EQ(value_of(got[i]), reference::as_bf16(x[i])) << i;
      }
    }
  });
}

TEST(RowKernels, ToFiniteBf16RoundsAlikeAndNamesTheFirstElementThatIsNot) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    if (count == 0) return;
    const auto fine = reference::random_floats(count, 8);
    for (const float bad : {nan, infinity, -infinity, 3.4e38F}) {
      for (const std::int64_t at : {count, count - 1, count / 2, std::int64_t{0}}) {
        auto x = fine;
        for (std::int64_t i = at; i < count; i += 7) x[i] = bad;
        const DeviceArray<float> device_x(x, shape.skew);
        const DeviceArray<Bf16> out(count, shape.skew);
        const DeviceArray<unsigned long long> word(std::vector<unsigned long long>{all_finite});
        to_finite_bf16(device_x.data(), count, bf16(out), word.data(), stream);
        const auto got = out.read();
        for (std::int64_t i = 0; i < at; ++i)
          ASSERT_EQ(value_of(got[i]), reference::as_bf16(x[i])) << i;
        ASSERT_EQ(word.read()[0], at == count ? all_finite : static_cast<unsigned long long>(at));
      }
    }
  });
}

TEST(RowKernels, ArgmaxFindsTheLargest) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    if (count == 0) return;
    const auto x = reference::random_floats(count, 9);
    const DeviceArray<float> device_x(x, shape.skew);
    const DeviceArray<std::int32_t> best(std::int64_t{1});
    const DeviceArray<std::uint64_t> scratch(argmax_scratch_bytes() / 8);
    argmax(device_x.data(), count, best.data(), scratch.data(), stream);
    EXPECT_EQ(best.read()[0], std::max_element(x.begin(), x.end()) - x.begin());
    scratch.read();
  });
}

// As of rms_norm, and one more rounding for the sum, relative to it.
TEST(RowKernels, AddNormAddsWhatRmsNormGives) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    constexpr float epsilon = 1e-5F;
    const auto weight = reference::random_floats(shape.width, 4);
    const auto from = reference::random_floats(count, 5, 3.0F);
    const auto x = reference::random_floats(count, 12);
    const DeviceArray<float> device_weight(weight, shape.skew);
    const DeviceArray<float> device_from(from, shape.skew);
    const DeviceArray<float> device_x(x, shape.skew);
    add_norm(device_from.data(), device_weight.data(), shape.rows, shape.width, epsilon,
             device_x.data(), stream);
    const auto got = device_x.read();
    EXPECT_EQ(device_from.read(), from);
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < shape.width; ++i)
        squares += std::pow(double{from[row * shape.width + i]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(shape.width) + epsilon);
      for (std::int64_t i = 0; i < shape.width; ++i) {
        const std::int64_t at = row * shape.width + i;
        const double normed = from[at] * scale * weight[i];
        const double tolerance = std::abs(normed) * (static_cast<double>(shape.width) / 2 + 8) * u +
                                 (std::abs(x[at] + normed) + std::abs(normed)) * u;
        ASSERT_NEAR(got[at], x[at] + normed, tolerance) << at;
      }
    }
  });
}

// tanh errs by 2 ulp (CUDA's bound) of at most 1, and its argument by some 5 roundings, which tanh
// does not enlarge where it is not flat: near -1 the sum cancels, so that the error is relative to
// the gate itself.
TEST(RowKernels, GeluMultiplyGatesUp) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    auto gate = reference::random_floats(count, 6, 8.0F);
    const auto up = reference::random_floats(count, 7);
    if (count > 3) {
      gate[0] = -1e20F;
      gate[1] = 1e20F;
      gate[2] = 0.0F;
    }
    const DeviceArray<float> device_gate(gate, shape.skew);
    const DeviceArray<float> device_up(up, shape.skew);
    const DeviceArray<Bf16> out(count, shape.skew);
    gelu_multiply(device_gate.data(), device_up.data(), count, bf16(out), stream);
    const auto got = out.read();
    const double root = std::sqrt(2 / 3.14159265358979323846);
    for (std::int64_t i = 0; i < count; ++i) {
      const double g = gate[i];
      const double expected = 0.5 * g * (1 + std::tanh(root * (g + 0.044715 * g * g * g))) * up[i];
      const double size = std::abs(g * up[i]);
      ASSERT_NEAR(value_of(got[i]), expected,
                  std::abs(expected) * v + (std::abs(g) < 1e10 ? 16 * u * size : size * u) +
                      std::ldexp(1.0, -133))
          << i;
    }
  });
}

TEST(RowKernels, ScaleMultipliesEveryElement) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t count, const Stream& stream) {
    const auto x = reference::random_floats(count, 13);
    const DeviceArray<float> device_x(x, shape.skew);
    scale(48.5F, count, device_x.data(), stream);
    const auto got = device_x.read();
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(got[i], x[i] * 48.5F) << i;
  });
}

// Each result is two products and their sum: three roundings of at most |a| + |b|, as no cosine or
// sine is beyond 1. rest: elements of a head behind those that are turned.
TEST(RowKernels, RopeTurnsThePairsOfEveryHead) {
  TOPKV_NEEDS_GPU();
  each_shape([](const Shape& shape, std::int64_t, const Stream& stream) {
    constexpr std::int64_t heads = 3;
    const std::int64_t half = shape.width;
    const auto angles = reference::random_floats(shape.rows * half, 10, 3.0F);
    std::vector<float> cosines(angles.size());
    std::vector<float> sines(angles.size());
    for (std::size_t i = 0; i < angles.size(); ++i) {
      cosines[i] = std::cos(angles[i]);
      sines[i] = std::sin(angles[i]);
    }
    const DeviceArray<float> device_cos(cosines, shape.skew);
    const DeviceArray<float> device_sin(sines, shape.skew);
    for (const bool interleaved : {false, true}) {
      for (const std::int64_t rest : {std::int64_t{0}, std::int64_t{2}, 2 * half}) {
        SCOPED_TRACE(testing::Message() << "interleaved " << interleaved << ", rest " << rest);
        const std::int64_t dim = 2 * half + rest;
        const auto x = reference::random_floats(shape.rows * heads * dim, 11);
        const DeviceArray<float> device_x(x, shape.skew);
        rope(device_cos.data(), device_sin.data(), shape.rows, heads, {dim, 2 * half, interleaved},
             device_x.data(), stream);
        const auto got = device_x.read();
        for (std::int64_t row = 0; row < shape.rows * heads; ++row) {
          for (std::int64_t i = 0; i < half; ++i) {
            const std::int64_t low = row * dim + (interleaved ? 2 * i : i);
            const std::int64_t high = row * dim + (interleaved ? 2 * i + 1 : half + i);
            const double a = x[low];
            const double b = x[high];
            const double c = cosines[row / heads * half + i];
            const double s = sines[row / heads * half + i];
            const double tolerance = 3 * u * (std::abs(a) + std::abs(b));
            ASSERT_NEAR(got[low], a * c - b * s, tolerance) << row << ", " << i;
            ASSERT_NEAR(got[high], b * c + a * s, tolerance) << row << ", " << i;
          }
          for (std::int64_t i = 2 * half; i < dim; ++i)
            ASSERT_EQ(got[row * dim + i], x[row * dim + i]) << row << ", " << i;
        }
      }
    }
  });
}

std::int32_t argmax_of(const std::vector<float>& x) {
  const Stream stream;
  const DeviceArray<float> device_x(x);
  const DeviceArray<std::int32_t> best(std::int64_t{1});
  const DeviceArray<std::uint64_t> scratch(argmax_scratch_bytes() / 8);
  argmax(device_x.data(), static_cast<std::int64_t>(x.size()), best.data(), scratch.data(), stream);
  return best.read()[0];
}

TEST(Argmax, TakesTheFirstOfEqualOnes) {
  TOPKV_NEEDS_GPU();
  std::vector<float> x(300000, -1.0F);
  x[299999] = x[150001] = x[77] = 5.0F;
  EXPECT_EQ(argmax_of(x), 77);
  EXPECT_EQ(argmax_of({-0.0F, 0.0F}), 0);
  EXPECT_EQ(argmax_of({0.0F, -0.0F}), 0);
  EXPECT_EQ(argmax_of({-2.0F, -1.0F, -1.0F}), 1);
}

TEST(Argmax, NaNNeverWins) {
  TOPKV_NEEDS_GPU();
  EXPECT_EQ(argmax_of({nan, -3.0F, -nan, -2.0F, nan}), 3);
  EXPECT_EQ(argmax_of({nan, -infinity}), 1);
  EXPECT_EQ(argmax_of({1.0F, nan, infinity, nan}), 2);
}

TEST(ToBf16, ReachesElementsBeyondThe31stPowerOfTwo) {
  TOPKV_NEEDS_GPU();
  const std::int64_t count = (std::int64_t{1} << 31) + 3;
  std::size_t left = 0;
  std::size_t total = 0;
  TOPKV_CUDA(cudaMemGetInfo(&left, &total));
  if (left < 14ULL << 30) GTEST_SKIP() << "needs 14 GiB of free device memory";
  const Stream stream;
  const DeviceArray<float> x(count);
  const DeviceArray<Bf16> out(count);
  const float last[] = {1.5F, -2.5F, 3.5F};
  TOPKV_CUDA(cudaMemcpy(x.data() + count - 3, last, sizeof last, cudaMemcpyHostToDevice));
  to_bf16(x.data(), count, bf16(out), stream);
  stream.synchronize();
  Bf16 got[3];
  TOPKV_CUDA(cudaMemcpy(got, out.data() + count - 3, sizeof got, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(value_of(got[i]), last[i]);
}

}  // namespace
}  // namespace topkv::gpu
