// The CUDA device behind ComputeDevice: its arithmetic against float64, the ways to it and back.
//
// u is float32's unit roundoff, 2^-24, and v bf16's, 2^-8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/runtime/handles.h"
#include "src/core/math/convert.h"
#include "src/device/compute_device.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr double u = 1.0 / (1 << 24);
constexpr double v = 1.0 / (1 << 8);
constexpr std::int64_t ceiling = std::int64_t{3} << 30;

/// The device, its lock, and what the tests do with both.
class Bench {
 public:
  Bench() : device_(open_gpu(0, ceiling)), lock_(device_->lock()) {}

  ComputeDevice& device() { return *device_; }

  Buffer room(std::int64_t bytes) { return device_->allocate(bytes, "test"); }
  Buffer put(const std::vector<float>& values) {
    Buffer buffer = room(bytes(values));
    device_->copy_in(values.data(), bytes(values), buffer.data());
    return buffer;
  }
  Buffer operand(const std::vector<float>& values) {
    const Buffer floats = put(values);
    Buffer buffer = room(bytes(values) / 2);
    device_->to_operand(floats.floats(), static_cast<std::int64_t>(values.size()), buffer.data());
    return buffer;
  }
  std::vector<float> get(const Buffer& buffer, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    device_->copy_out(buffer.data(), bytes(values), values.data());
    return values;
  }
  std::vector<float> get_operand(const Buffer& buffer, std::int64_t count) {
    std::vector<std::byte> raw(static_cast<std::size_t>(count) * 2);
    device_->copy_out(buffer.data(), count * 2, raw.data());
    std::vector<float> values(static_cast<std::size_t>(count));
    to_float(raw.data(), DType::bf16, count, values.data());
    return values;
  }

 private:
  static std::int64_t bytes(const std::vector<float>& values) {
    return static_cast<std::int64_t>(values.size() * sizeof(float));
  }

  std::shared_ptr<ComputeDevice> device_;
  std::unique_lock<std::recursive_mutex> lock_;  // given back before the device goes
};

Matrix matrix_of(const std::vector<std::byte>& data, DType dtype, std::int64_t out,
                 std::int64_t in) {
  return {data.data(), dtype, out, in};
}

std::vector<std::byte> stored_as(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> data(values.size() * static_cast<std::size_t>(bytes_of(dtype)));
  from_float(values.data(), static_cast<std::int64_t>(values.size()), dtype, data.data());
  return data;
}

// Operands are exact in bf16, so their products are exact in float32. A sum of k of them, in any
// order, errs by at most k u relative to the sum of their magnitudes, or twice that where tensor
// cores cut off instead of rounding; adding to what is there rounds once more.
TEST(CudaMatmul, MatchesFloat64) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  struct Size {
    std::int64_t out, in, tokens;
  };
  std::vector<Size> sizes = {{1, 1, 1}, {1031, 4096, 1}, {1031, 4096, 3}, {264, 4096, 17}};
  for (const std::int64_t tokens : {1, 3, 17, 300}) {
    sizes.push_back({7, 13, tokens});
    sizes.push_back({64, 64, tokens});
    sizes.push_back({384, 1000, tokens});
  }
  for (const auto [out, in, tokens] : sizes) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(testing::Message() << "[" << tokens << ", " << in << "] x [" << out << ", " << in
                                      << "]^T" << (accumulate ? ", added" : ""));
      const auto weight = reference::random_bf16(out * in, 1);
      const auto x = reference::random_bf16(tokens * in, 2);
      const auto before = reference::random_floats(tokens * out, 3);
      const auto host = stored_as(weight, DType::f32);
      const Matrix on_host = matrix_of(host, DType::f32, out, in);
      const Buffer storage = bench.room(bench.device().upload_bytes(on_host));
      const Matrix matrix = bench.device().upload(on_host, storage.data());
      const Buffer operand = bench.operand(x);
      const Buffer result = bench.put(before);
      bench.device().matmul(matrix, operand.data(), tokens, accumulate, result.floats());
      const auto got = bench.get(result, tokens * out);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < out; ++o) {
          double sum = accumulate ? before[t * out + o] : 0.0;
          double magnitude = std::abs(sum);
          for (std::int64_t i = 0; i < in; ++i) {
            const double product = double{x[t * in + i]} * weight[o * in + i];
            sum += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(got[t * out + o], sum, 2 * static_cast<double>(in + 1) * u * magnitude)
              << "token " << t << ", feature " << o;
        }
      }
    }
  }
}

TEST(CudaUpload, TurnsEveryDtypeToBf16) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t side : {1, 3, 2501}) {  // the last takes four pieces of the ring
      SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << side);
      const std::int64_t count = side * side;
      auto data = stored_as(reference::random_floats(count, 4), dtype);
      std::vector<float> values(static_cast<std::size_t>(count));
      to_float(data.data(), dtype, count, values.data());
      data.insert(data.begin(), std::byte{0});  // now elements are not aligned
      const Matrix host{data.data() + 1, dtype, side, side};
      ASSERT_EQ(bench.device().upload_bytes(host), count * 2);
      const Buffer storage = bench.room(count * 2);
      const Matrix matrix = bench.device().upload(host, storage.data());
      EXPECT_EQ(matrix.dtype, DType::bf16);
      EXPECT_EQ(matrix.data, storage.data());
      EXPECT_EQ(matrix.out_features, side);
      EXPECT_EQ(matrix.in_features, side);
      const auto got = bench.get_operand(storage, count);
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(got[i], reference::as_bf16(values[i])) << i;
    }
  }
}

TEST(CudaCopyIn, MemoryMayChangeAsSoonAsItReturns) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  // A piece of the ring is 4 MiB, the ring 64 MiB.
  for (const std::int64_t bytes : {0, 1, 1000, (4 << 20) + 3, 70 << 20}) {
    SCOPED_TRACE(bytes);
    const auto size = static_cast<std::size_t>(bytes);
    std::vector<std::byte> expected(size);
    for (std::size_t i = 0; i < size; ++i)
      expected[i] = static_cast<std::byte>(i * 2654435761U >> 13);
    std::vector<std::byte> pageable = expected;
    const gpu::PinnedBuffer pinned(bytes);
    std::copy(expected.begin(), expected.end(), pinned.data());
    for (std::byte* from : {pageable.data(), pinned.data()}) {
      const Buffer buffer = bench.room(bytes);
      bench.device().copy_in(from, bytes, buffer.data());
      std::fill_n(from, size, std::byte{0x5a});
      std::vector<std::byte> got(size);
      bench.device().copy_out(buffer.data(), bytes, got.data());
      EXPECT_TRUE(got == expected);
    }
  }
}

TEST(CudaEmbed, TakesMoreTokensThanItStagesAtATime) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  constexpr std::int64_t vocabulary = 1000;
  constexpr std::int64_t width = 12;
  const auto values = reference::random_bf16(vocabulary * width, 5);
  const auto host = stored_as(values, DType::bf16);
  const Buffer storage = bench.room(vocabulary * width * 2);
  const Matrix table =
      bench.device().upload(matrix_of(host, DType::bf16, vocabulary, width), storage.data());
  for (const std::int64_t count : {0, 1, 8192, 2 * 8192 + 5}) {
    SCOPED_TRACE(count);
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    for (std::int64_t t = 0; t < count; ++t) tokens[t] = static_cast<Token>(t * 7919 % vocabulary);
    const Buffer out = bench.room(count * width * 4);
    bench.device().embed(table, tokens, out.floats());
    const auto got = bench.get(out, count * width);
    for (std::int64_t i = 0; i < count * width; ++i)
      ASSERT_EQ(got[i], values[tokens[i / width] * width + i % width]) << i;
  }
}

// The kernels have tests of their own: this holds the device to giving them their arguments.
TEST(CudaDevice, EveryOperationIsWhatItsNameSays) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  ComputeDevice& device = bench.device();
  constexpr std::int64_t rows = 3;
  constexpr std::int64_t width = 8;
  constexpr float epsilon = 0.5F;
  const auto x = reference::random_floats(rows * width, 6);
  const auto other = reference::random_floats(rows * width, 7);
  const auto weight = reference::random_floats(width, 8);
  const Buffer device_x = bench.put(x);
  const Buffer device_other = bench.put(other);
  const Buffer device_weight = bench.put(weight);
  const Buffer out = bench.room(rows * width * 2);
  const double rounded = v + 16 * u;  // to bf16, after a few roundings to float32

  device.silu_multiply(device_x.floats(), device_other.floats(), rows * width, out.data());
  auto got = bench.get_operand(out, rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double expected = x[i] / (1 + std::exp(-double{x[i]})) * other[i];
    ASSERT_NEAR(got[i], expected, std::abs(expected) * rounded) << i;
  }

  device.gelu_multiply(device_x.floats(), device_other.floats(), rows * width, out.data());
  got = bench.get_operand(out, rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double g = x[i];
    const double bent = std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
    const double expected = 0.5 * g * (1 + std::tanh(bent)) * other[i];
    ASSERT_NEAR(got[i], expected, std::abs(expected) * v + 16 * u * std::abs(g * other[i])) << i;
  }

  const Buffer scaled = bench.put(x);
  device.scale(3.0F, rows * width, scaled.floats());
  const auto tripled = bench.get(scaled, rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) ASSERT_EQ(tripled[i], 3 * x[i]);

  const Buffer grown = bench.put(other);
  device.add_norm(device_x.floats(), device_weight.floats(), rows, width, epsilon, grown.floats());
  const auto with_norm = bench.get(grown, rows * width);

  device.rms_norm(device_x.floats(), device_weight.floats(), rows, width, epsilon, out.data());
  got = bench.get_operand(out, rows * width);
  device.head_norm(device_weight.floats(), rows, width, epsilon, device_x.floats());
  const auto in_place = bench.get(device_x, rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    double squares = 0;
    for (std::int64_t j = 0; j < width; ++j)
      squares += std::pow(double{x[i / width * width + j]}, 2);
    const double expected = x[i] / std::sqrt(squares / width + epsilon) * weight[i % width];
    ASSERT_NEAR(got[i], expected, std::abs(expected) * rounded) << i;
    ASSERT_NEAR(in_place[i], expected, std::abs(expected) * 16 * u) << i;
    ASSERT_NEAR(with_norm[i], other[i] + expected,
                (std::abs(expected) + std::abs(other[i])) * 18 * u)
        << i;
  }

  // Two heads of width / 2 for each of the rows; angles: any numbers do.
  const Buffer turned = bench.put(x);
  device.rope({device_weight.floats(), device_other.floats()}, 2, 2, width / 2, turned.floats());
  const auto pairs = bench.get(turned, 2 * width);
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t i = 0; i < 2; ++i) {
      const double a = x[row * 4 + i];
      const double b = x[row * 4 + 2 + i];
      const double c = weight[row / 2 * 2 + i];
      const double s = other[row / 2 * 2 + i];
      const double tolerance = 3 * u * (std::abs(a) + std::abs(b)) * (std::abs(c) + std::abs(s));
      ASSERT_NEAR(pairs[row * 4 + i], a * c - b * s, tolerance);
      ASSERT_NEAR(pairs[row * 4 + 2 + i], b * c + a * s, tolerance);
    }
  }

  const Buffer sums = bench.put(x);
  device.add_bias(device_weight.floats(), rows, width, sums.floats());
  const auto added = bench.get(sums, rows * width);
  for (std::int64_t i = 0; i < rows * width; ++i) ASSERT_EQ(added[i], x[i] + weight[i % width]);

  EXPECT_EQ(device.argmax(device_other.floats(), rows * width),
            std::max_element(other.begin(), other.end()) - other.begin());
  EXPECT_EQ(device.argmax(device_other.floats(), 1), 0);
}

TEST(CudaDevice, ThePhaseClockCountsWhatHasBegunAndEnded) {
  TOPKV_NEEDS_GPU();
  Bench bench;
  const auto clock = bench.device().phase_clock();
  EXPECT_EQ(clock->seconds(), PhaseSeconds{});
  const Buffer x = bench.put(std::vector<float>(1 << 20, 1.0F));
  const Buffer bias = bench.put(std::vector<float>(1 << 10, 1.0F));
  for (int i = 0; i < 600; ++i) {  // more marks than are kept
    clock->begin(Phase::matmul);
    bench.device().add_bias(bias.floats(), 1 << 10, 1 << 10, x.floats());
    clock->begin(Phase::matmul);  // goes on
    clock->end();
  }
  const PhaseSeconds once = clock->seconds();
  EXPECT_GT(once[static_cast<std::size_t>(Phase::matmul)], 0);
  EXPECT_EQ(once[static_cast<std::size_t>(Phase::attention)], 0);
  EXPECT_EQ(once[static_cast<std::size_t>(Phase::other)], 0);
  EXPECT_EQ(clock->seconds(), once);
  clock->begin(Phase::attention);
  bench.device().add_bias(bias.floats(), 1 << 10, 1 << 10, x.floats());
  clock->begin(Phase::other);
  EXPECT_GT(clock->seconds()[static_cast<std::size_t>(Phase::attention)], 0);
  EXPECT_EQ(clock->seconds()[static_cast<std::size_t>(Phase::matmul)],
            once[static_cast<std::size_t>(Phase::matmul)]);
}

}  // namespace
}  // namespace topkv
