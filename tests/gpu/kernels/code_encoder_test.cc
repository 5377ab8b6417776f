// Codes made on a device, against float64 of what was learned, and against the host's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "tests/gpu/faults_guard.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Place;

/// bf16 vectors in page-locked memory.
struct Locked {
  Locked(std::int64_t count, std::int64_t dim, unsigned seed, float size)
      : memory(count * dim * 2), view{memory.data(), DType::bf16, count, dim, dim * 2} {
    const auto x = reference::some_vectors(count, dim, seed, size, 60);
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &x[i], 4);
      memory.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
  double at(std::int64_t vector, std::int64_t element) const {
    const std::uint32_t bits =
        std::uint32_t{memory.as<std::uint16_t>()[vector * view.dim + element]} << 16;
    float x = 0;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  /// Scaled and centred, along an axis.
  double along(const CodeAxes& axes, std::int64_t vector, std::int64_t axis) const {
    double sum = 0;
    for (std::int64_t j = 0; j < view.dim; ++j) {
      sum += (at(vector, j) * axes.scale() - axes.mean()[static_cast<std::size_t>(j)]) *
             axes.axis(axis)[j];
    }
    return sum;
  }

  gpu::PinnedBuffer memory;
  KeyView view;
};

struct Case {
  std::int64_t count, dim, bytes, bits;
  float size = 2;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{1, 64, 16, 64},           {63, 128, 16, 64},
                                        {70, 80, 16, 80},          {5000, 96, 24, 48},
                                        {3001, 256, 32, 128},      {40123, 128, 16, 64},
                                        {40123, 64, 32, 64},       {20000, 128, 32, 128, 1e-12F},
                                        {17000, 128, 8, 17, 1e9F}, {3001, 256, 64, 256}};
  return all;
}

std::string name(const Case& of) {
  return std::to_string(of.count) + " of " + std::to_string(of.dim) + " elements, " +
         std::to_string(of.bytes) + " bytes";
}

/// Of vectors looked at closely, every so many.
std::int64_t step_of(std::int64_t count) { return std::max<std::int64_t>(1, count / 500); }

TEST(CodeEncoder, KeysGetTheNearestLevels) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const Case& of : cases()) {
    SCOPED_TRACE(name(of));
    const Locked keys(of.count, of.dim, 11, of.size);
    const KeyCoder coder(keys.view, of.bytes);
    const auto encoder = place.device().compute()->code_encoder(of.dim);
    ASSERT_NE(encoder, nullptr);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(coder.bytes_for(of.count)), 0xa5);
    std::vector<float> residuals(static_cast<std::size_t>(of.count));
    encoder->encode(coder, keys.view, codes.data(), residuals.data());

    double worst = 0;  // in steps: what a level is farther away than the nearest
    double worst_residual = 0;
    std::vector<float> decoded(static_cast<std::size_t>(of.dim));
    for (std::int64_t key = 0; key < of.count; key += step_of(of.count)) {
      const std::uint8_t* code = &codes[static_cast<std::size_t>(
          key / code_block * code_block * coder.bytes() + key % code_block)];
      std::vector<int> levels(coder.levels().size(), 0);
      for (const KeyCoder::Slot& slot : coder.slots()) {
        const int value = code[coder.byte_of(slot) * code_block] >> coder.bit_of(slot) & 3;
        levels[static_cast<std::size_t>(slot.axis)] += value << slot.shift;
      }
      for (std::size_t axis = 0; axis < levels.size(); ++axis) {
        const EvenLevels& even = coder.levels()[axis];
        const double x = keys.along(coder.axes(), key, static_cast<std::int64_t>(axis));
        const auto off = [&](int level) { return std::abs(x - even.of(level)); };
        double nearest = std::numeric_limits<double>::infinity();
        for (int level = 0; level <= even.most; ++level) nearest = std::min(nearest, off(level));
        // (Axes along which there is nothing but rounding say nothing.)
        const auto& variances = coder.axes().variances();
        if (even.step > 0 && variances[axis] > 1e-6 * variances[0])
          worst = std::max(worst, (off(levels[axis]) - nearest) / static_cast<double>(even.step));
      }
      coder.decode(codes.data(), key, decoded.data());
      double residual = 0;
      double square = 0;
      for (std::int64_t j = 0; j < of.dim; ++j) {
        const double x = keys.at(key, j);
        residual += std::pow(x - decoded[static_cast<std::size_t>(j)], 2);
        square += x * x;
      }
      worst_residual =
          std::max(worst_residual, std::abs(residual - residuals[static_cast<std::size_t>(key)]) /
                                       (square + 1e-300));
    }
    EXPECT_LT(worst, 1e-3);
    EXPECT_LT(worst_residual, 1e-4);
    // What fills up the last block.
    for (std::int64_t key = of.count; key % code_block != 0; ++key) {
      for (std::int64_t byte = 0; byte < coder.bytes(); ++byte) {
        ASSERT_EQ(codes[static_cast<std::size_t>(key / code_block * code_block * coder.bytes() +
                                                 byte * code_block + key % code_block)],
                  0);
      }
    }
    // The host's but for keys in the middle of two levels.
    std::vector<std::uint8_t> host(codes.size());
    std::vector<float> host_residuals(residuals.size());
    coder.encode(keys.view, 0, of.count, host.data(), host_residuals.data());
    std::int64_t others = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) others += codes[i] != host[i];
    EXPECT_LE(others, 2 + std::ssize(codes) / 1000);
  }
}

TEST(CodeEncoder, ValuesGetTheLevelThatChanceSays) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const Case& of : cases()) {
    SCOPED_TRACE(name(of));
    const Locked values(of.count, of.dim, 12, of.size);
    const ValueCoder coder(values.view, of.bits);
    const auto encoder = place.device().compute()->code_encoder(of.dim);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(coder.bytes_for(of.count)));
    encoder->encode(coder, values.view, codes.data());

    double worst = 0;  // of a range: how far on the wrong side of what decides a value lies
    for (std::int64_t value = 0; value < of.count; value += step_of(of.count)) {
      const std::uint8_t* quad = &codes[static_cast<std::size_t>(value / 4 * coder.lanes())];
      for (std::int64_t axis = 0; axis < 2 * coder.lanes(); ++axis) {
        const int bit = quad[axis % coder.lanes()] >> (value % 4 + axis / coder.lanes() * 4) & 1;
        if (axis >= coder.bits()) {
          ASSERT_EQ(bit, 0);
          continue;
        }
        const auto i = static_cast<std::size_t>(axis);
        const double range = static_cast<double>(coder.high()[i]) - coder.low()[i];
        const std::uint32_t hash = ValueCoder::seed_of(value) * ValueCoder::seed_of_axis(axis);
        const double limit = coder.low()[i] + range * hash / 4294967296.0;
        const double beyond = values.along(coder.axes(), value, axis) - limit;
        // Axes along which there is nothing but rounding say nothing.
        const double widest = static_cast<double>(coder.high()[0]) - coder.low()[0];
        if (range > 1e-3 * widest) worst = std::max(worst, (bit == 1 ? -beyond : beyond) / range);
      }
    }
    EXPECT_LT(worst, 1e-3);
    std::vector<std::uint8_t> host(codes.size(), 0);
    coder.encode(values.view, 0, of.count, host.data());
    std::int64_t others = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) others += codes[i] != host[i];
    EXPECT_LE(others, 2 + std::ssize(codes) / 1000);
    for (std::int64_t value = (of.count + 3) / 4 * 4; value % value_block != 0; value += 4) {
      for (std::int64_t lane = 0; lane < coder.lanes(); ++lane)
        ASSERT_EQ(codes[static_cast<std::size_t>(value / 4 * coder.lanes() + lane)], 0);
    }
  }
}

TEST(CodeEncoder, WaitsForCopies) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Locked keys(100'000, 64, 13, 2.0F);
  const KeyCoder coder(keys.view, 16);
  const auto encoder = place.device().compute()->code_encoder(64);
  std::vector<std::uint8_t> codes[2];
  std::vector<float> residuals[2];
  for (int late = 0; late < 2; ++late) {
    const test::InjectedFaults faults(late == 1 ? 300 : 0, false);
    codes[late].resize(static_cast<std::size_t>(coder.bytes_for(keys.view.count)));
    residuals[late].resize(static_cast<std::size_t>(keys.view.count));
    encoder->encode(coder, keys.view, codes[late].data(), residuals[late].data());
  }
  EXPECT_TRUE(codes[0] == codes[1]);
  EXPECT_TRUE(residuals[0] == residuals[1]);
}

TEST(CodeEncoder, RefusesWhatIsNotFiniteAndGoesOn) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  Locked keys(40'000, 64, 14, 2.0F);
  const KeyCoder coder(keys.view, 16);
  const auto encoder = place.device().compute()->code_encoder(64);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(coder.bytes_for(keys.view.count)));
  std::vector<float> residuals(static_cast<std::size_t>(keys.view.count));
  std::uint16_t& element = keys.memory.as<std::uint16_t>()[39'000 * 64 + 5];
  const std::uint16_t was = element;
  element = 0x7f80;  // infinity
  EXPECT_THROW(encoder->encode(coder, keys.view, codes.data(), residuals.data()), InvalidArgument);
  element = was;
  encoder->encode(coder, keys.view, codes.data(), residuals.data());
  std::vector<std::uint8_t> again = codes;
  encoder->encode(coder, keys.view, again.data(), residuals.data());
  EXPECT_TRUE(codes == again);
}

void append(ContextBuilder& builder, const test::TokenStream& stream, std::int64_t tokens) {
  for (std::size_t layer = 0; layer < stream.k.size(); ++layer) {
    const auto view = [&](const std::vector<float>& values) {
      return TensorView::tokens_first(values.data(), DType::f32, tokens, stream.shape.kv_heads,
                                      stream.shape.head_dim);
    };
    builder.append(static_cast<std::int64_t>(layer), view(stream.k[layer]), view(stream.v[layer]));
  }
}

/// A context whose rows are page-locked gets a device's codes, others the host's.
TEST(CodeEncoder, MakesTheCodesOfContexts) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const AttentionShape shape{
      .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .sliding_window = {0, 100, 0}};
  const std::int64_t tokens = 20'000;
  const test::TokenStream stream(shape, tokens + 4);
  const std::string spec = "codes:k=16,v=8";
  for (const bool locked : {true, false}) {
    ContextBuilder builder(shape, {.capacity = tokens}, cuda.device());
    if (locked) builder.reserve(0, 1);
    append(builder, stream, tokens);
    const auto plain = builder.freeze();
    const auto host = plain->with_index(spec);
    std::int64_t reported = 0;
    const std::int64_t copies = gpu::Faults::copies;
    const auto device = plain->with_index(
        spec, [&](const Progress& progress) { reported = progress.done; }, cuda.device());
    EXPECT_EQ(reported, 2 * 2 * tokens);
    // Two tiles of keys, and two of values, of each head.
    EXPECT_EQ(gpu::Faults::copies - copies, locked ? 4 * 2 * 2 : 0);
    EXPECT_EQ(device->memory().index_bytes, host->memory().index_bytes);
    std::int64_t others = 0;
    std::int64_t rare = 0;
    for (const std::int64_t layer : {0, 2}) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto& a = dynamic_cast<const CodesIndex&>(host->index(spec, layer, head));
        const auto& b = dynamic_cast<const CodesIndex&>(device->index(spec, layer, head));
        const std::int64_t bytes = a.coder().bytes_for(tokens);
        for (std::int64_t i = 0; i < bytes; ++i) others += a.codes()[i] != b.codes()[i];
        std::vector<std::int64_t> both;
        std::ranges::set_intersection(a.rare(), b.rare(), std::back_inserter(both));
        rare += std::ssize(both);
        EXPECT_GE(std::ssize(both), std::ssize(a.rare()) - 2);
      }
    }
    EXPECT_GT(rare, 4 * (tokens / 256 - 3));
    EXPECT_LE(others, locked ? 4 * 16 * tokens / 1000 : 0);
    std::vector<std::vector<float>> outs[2];
    for (int i = 0; i < 2; ++i) {
      Session session(
          i == 0 ? host : device,
          {.index = spec, .k = TopK::same(64), .window = 64, .sinks = 4, .capacity = 16},
          cuda.device());
      test::Feed feed(cuda, stream, tokens, tokens + 4);
      feed.run(session, 1);
      outs[i] = feed.outs();
    }
    EXPECT_LT(reference::distance(outs[0], outs[1]), locked ? 0.01 : 1e-5);
  }
}

TEST(CodeEncoder, IsNotThereWhereThereIsNoRoomAndTheHostsThreadsMakeCodes) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64};
  const test::TokenStream stream(shape, 304);
  ContextBuilder builder(shape, {.capacity = 300}, place.device());
  builder.reserve(0, 1);
  append(builder, stream, 300);
  const auto plain = builder.freeze();
  const auto compute = place.device().compute();
  const DeviceMemory memory = compute->memory();
  const Buffer all = compute->allocate(memory.ceiling - memory.used - (8 << 20), "a test");
  EXPECT_THROW(compute->code_encoder(64), OutOfMemory);
  const Place host("cpu");
  std::vector<std::vector<float>> outs[2];
  for (const bool on_device : {false, true}) {
    const auto context = plain->with_index("codes", {}, on_device ? place.device() : host.device());
    Session session(context, {.index = "codes", .k = TopK::same(8), .window = 16, .capacity = 8});
    test::Feed feed(host, stream, 300, 304);
    feed.run(session, 1);
    outs[on_device ? 1 : 0] = feed.outs();
  }
  EXPECT_EQ(outs[0], outs[1]);
}

}  // namespace
}  // namespace topkv
