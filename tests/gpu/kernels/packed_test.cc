// Packed weights on a CUDA device, against float64: products with every number of tokens, by every
// packing, size and width of load, and the rows of an embedding.
//
// u is float32's unit roundoff, 2^-24, and v bf16's, 2^-8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/math/convert.h"
#include "src/device/compute_device.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/packed_case.h"
#include "tests/support/reference.h"

namespace topkv {
namespace {

constexpr double u = 1.0 / (1 << 24);
constexpr double v = 1.0 / (1 << 8);

class PackedOnCuda : public testing::Test {
 protected:
  void open() {
    device_ = open_gpu(0, std::int64_t{3} << 30);
    lock_ = device_->lock();
    device_->prepare_packed();
  }

  Buffer put(const std::vector<float>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    Buffer buffer = device_->allocate(bytes, "test");
    device_->copy_in(values.data(), bytes, buffer.data());
    return buffer;
  }
  Buffer operand(const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::byte> halves(values.size() * 2);
    from_float(values.data(), count, DType::bf16, halves.data());
    Buffer buffer = device_->allocate(2 * count, "test");
    device_->copy_in(halves.data(), 2 * count, buffer.data());
    return buffer;
  }
  std::vector<float> get(const Buffer& buffer, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    device_->copy_out(buffer.data(), count * 4, values.data());
    return values;
  }

  /// out = x W^T (+ before) for random values; rounded: weights may be rounded to bf16 on the way.
  void expect_product(const packed_case::Case& of, std::int64_t tokens, bool accumulate) {
    SCOPED_TRACE(testing::Message()
                 << tokens << " tokens, [" << of.out << ", " << of.in << "], "
                 << packed_case::name_of(of.packing) << " in groups of " << of.group
                 << (of.offsets ? " with offsets" : "") << (accumulate ? ", added" : ""));
    packed_case::Packed packed = packed_case::random_packed(of, 1);
    const Buffer block = packed_case::put(*device_, packed);
    const auto x = reference::random_bf16(tokens * of.in, 2);
    const auto before = reference::random_floats(tokens * of.out, 3);
    const Buffer inputs = operand(x);
    const Buffer result = put(before);
    device_->matmul(packed.matrix, inputs.data(), tokens, accumulate, result.floats());
    const auto got = get(result, tokens * of.out);
    // Straight from the codes: codes and inputs are exact in bf16, so products are exact in
    // float32; sums err by u for each input, or twice that where tensor cores cut off instead of
    // rounding, scales and offsets by a few. Unpacked weights are rounded to bf16 first, by v.
    const double each =
        2 * static_cast<double>(of.in + 16) * u +
        (tokens > most_straight || (of.packing == Packing::fp4 && tokens > 2) ? v : 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t o = 0; o < of.out; ++o) {
        const double added = accumulate ? before[t * of.out + o] : 0.0;
        const auto want = packed_case::row_product(packed, o, x.data() + t * of.in);
        ASSERT_NEAR(got[t * of.out + o], added + want.sum, each * (std::abs(added) + want.size))
            << "token " << t << ", output " << o;
      }
    }
  }

  static constexpr std::int64_t most_straight = 64;

  std::shared_ptr<ComputeDevice> device_;
  DeviceLock lock_;
};

TEST_F(PackedOnCuda, ProductsMatchFloat64) {
  TOPKV_NEEDS_GPU();
  open();
  for (const packed_case::Case& of : packed_case::cases()) {
    for (const std::int64_t tokens : {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 300}) {
      for (const bool accumulate : {false, true}) {
        expect_product(of, tokens, accumulate);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Of many rows the blocks have fewer warps each; an unpacked one is multiplied in several tiles of
// rows; inputs are more than one pass of the warps takes.
TEST_F(PackedOnCuda, ProductsOfLargeWeightsMatchFloat64) {
  TOPKV_NEEDS_GPU();
  open();
  const std::vector<packed_case::Case> large = {
      {Packing::int4, 20011, 256, 128, true},  {Packing::int8, 20011, 256, 256, false},
      {Packing::int4, 24, 18944, 128, true},   {Packing::int8, 24, 18944, 18944, false},
      {Packing::int4, 2500, 18944, 128, true}, {Packing::fp8, 20011, 256, 128, false},
      {Packing::fp8, 24, 18944, 128, false},   {Packing::fp4, 24, 18944, 32, false},
      {Packing::fp4, 20011, 256, 32, false},
  };
  for (const packed_case::Case& of : large) {
    for (const std::int64_t tokens : {1, 5, 16, 66}) {
      if (of.out == 2500 && tokens < 66) continue;  // float64 takes its time
      expect_product(of, tokens, tokens == 5);
      if (HasFatalFailure()) return;
    }
  }
}

// Inputs of a few tokens are met as integers or float16 that share an exponent: far from the
// largest they are still there, and what is not finite is not hidden.
TEST_F(PackedOnCuda, InputsOfEverySizeCount) {
  TOPKV_NEEDS_GPU();
  open();
  for (const packed_case::Case& of : {packed_case::Case{Packing::int8, 33, 384, 384, false},
                                      {Packing::int4, 33, 384, 128, true},
                                      {Packing::fp8, 33, 384, 128, false},
                                      {Packing::fp4, 33, 384, 32, false}}) {
    packed_case::Packed packed = packed_case::random_packed(of, 9);
    const Buffer block = packed_case::put(*device_, packed);
    const Buffer out = put(std::vector<float>(static_cast<std::size_t>(of.out)));
    const auto product = [&](const std::vector<float>& x) {
      const Buffer inputs = operand(x);
      device_->matmul(packed.matrix, inputs.data(), 1, false, out.floats());
      return get(out, of.out);
    };
    for (const float largest : {0.0F, 0x1p-90F, 0x1p-60F, 1.0F, 0x1p60F, 0x1p100F}) {
      SCOPED_TRACE(testing::Message()
                   << packed_case::name_of(of.packing) << ", largest " << largest);
      // Only what is far below the largest of its 128 is rounded; all are bf16 still.
      const auto x = packed_case::of_every_size(reference::random_bf16(of.in, 10), largest);
      const auto got = product(x);
      const double rounding = 4 * u * packed_case::largest_of(x);
      for (std::int64_t o = 0; o < of.out; ++o) {
        const auto want = packed_case::row_product(packed, o, x.data());
        // What is no normal float may be lost.
        ASSERT_NEAR(
            got[o], want.sum,
            2 * static_cast<double>(of.in + 16) * u * want.size + rounding * want.weights + 1e-37)
            << o;
      }
    }
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      auto x = reference::random_bf16(of.in, 11);
      x[200] = bad;
      for (const float value : product(x)) EXPECT_FALSE(std::isfinite(value)) << bad;
    }
  }
}

TEST_F(PackedOnCuda, InputsThatAreNotAlignedAreReadAsTheyAre) {
  TOPKV_NEEDS_GPU();
  open();
  for (const packed_case::Case& of : {packed_case::Case{Packing::int4, 40, 256, 128, true},
                                      {Packing::int8, 40, 256, 256, false}}) {
    packed_case::Packed packed = packed_case::random_packed(of, 5);
    const Buffer block = packed_case::put(*device_, packed);
    auto x = reference::random_bf16(of.in + 1, 6);
    const Buffer inputs = operand(x);
    x.erase(x.begin());
    const Buffer aligned = operand(x);
    const Buffer out = put(std::vector<float>(static_cast<std::size_t>(of.out)));
    device_->matmul(packed.matrix, aligned.data(), 1, false, out.floats());
    const auto want = get(out, of.out);
    device_->matmul(packed.matrix, inputs.data() + 2, 1, false, out.floats());
    EXPECT_EQ(get(out, of.out), want);
  }
}

TEST_F(PackedOnCuda, ARecordedProductGivesWhatItGaveAtOnce) {
  TOPKV_NEEDS_GPU();
  open();
  const packed_case::Case of{Packing::int4, 97, 384, 128, true};
  packed_case::Packed packed = packed_case::random_packed(of, 7);
  const Buffer block = packed_case::put(*device_, packed);
  const Buffer inputs = operand(reference::random_bf16(of.in, 8));
  const Buffer out = put(std::vector<float>(static_cast<std::size_t>(of.out)));
  device_->matmul(packed.matrix, inputs.data(), 1, false, out.floats());
  const auto want = get(out, of.out);
  std::unique_ptr<Recording> recording;
  for (int i = 0; i < 3; ++i) {
    device_->copy_in(std::vector<float>(want.size(), 7.0F).data(), of.out * 4, out.data());
    device_->replay(recording,
                    [&] { device_->matmul(packed.matrix, inputs.data(), 1, false, out.floats()); });
    EXPECT_EQ(get(out, of.out), want) << i;
  }
}

TEST_F(PackedOnCuda, EmbeddingGivesTheRowsThatTokensName) {
  TOPKV_NEEDS_GPU();
  open();
  for (const packed_case::Case& of : packed_case::cases()) {
    packed_case::Packed packed = packed_case::random_packed(of, 4);
    const Buffer block = packed_case::put(*device_, packed);
    const auto last = static_cast<Token>(of.out - 1);
    const std::vector<Token> tokens = {last, 0, last / 2, last};
    const Buffer out = put(std::vector<float>(tokens.size() * static_cast<std::size_t>(of.in)));
    device_->embed(packed.matrix, tokens, out.floats());
    const auto got = get(out, static_cast<std::int64_t>(tokens.size()) * of.in);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::int64_t i = 0; i < of.in; ++i) {
        const std::int64_t at = tokens[t] * of.in + i;
        ASSERT_NEAR(got[t * of.in + i], packed.values[at], 2 * u * packed.sizes[at]) << at;
      }
    }
  }
}

TEST_F(PackedOnCuda, RoomForUnpackingIsTakenOnceAndCounted) {
  TOPKV_NEEDS_GPU();
  device_ = open_gpu(0, std::int64_t{3} << 30);
  lock_ = device_->lock();
  const std::int64_t before = device_->memory().used;
  const std::int64_t planned = device_->allocation_bytes(device_->packed_bytes());
  EXPECT_GT(planned, 0);
  device_->prepare_packed();
  const std::int64_t after = device_->memory().used;
  EXPECT_GT(after, before);
  EXPECT_LE(after - before, planned);
  EXPECT_EQ(device_->packed_bytes(), 0);
  device_->prepare_packed();
  EXPECT_EQ(device_->memory().used, after);
}

}  // namespace
}  // namespace topkv
