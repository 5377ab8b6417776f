// Attention of a prefill against float64, on a device and (what it is to agree with) on the host:
// results, the rows that reach the store, what cannot be stored, and the order of its copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <string>

#include "src/store/row_store.h"
#include "tests/gpu/faults_guard.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Place;
using test::TokenStream;

/// A prefill of a stream's tokens.
class PrefillRun {
 public:
  PrefillRun(const Place& place, const TokenStream& stream, PrefillVisibility visible,
             std::int64_t chunk, DType dtype = DType::bf16)
      : place_(place),
        stream_(stream),
        visible_(std::move(visible)),
        chunk_(chunk),
        store_(stream.shape, dtype, stream.total, 0, "test"),
        prefill_(make()),
        outs_(static_cast<std::size_t>(stream.shape.layers)),
        lses_(outs_.size()) {}

  /// Gives all tokens, chunk by chunk, and asks for the last layer's log-sum-exp. Not yet finished.
  void attend() {
    const auto lock = place_.compute().lock();
    const AttentionShape& shape = stream_.shape;
    std::vector<Buffer> q, k, v, out, lse;
    for (std::size_t l = 0; l < outs_.size(); ++l) {
      q.push_back(place_.put(stream_.q[l]));
      k.push_back(place_.put(stream_.k[l]));
      v.push_back(place_.put(stream_.v[l]));
      out.push_back(place_.put(std::vector<float>(stream_.q[l].size(), NAN)));
      lse.push_back(place_.put(
          std::vector<float>(static_cast<std::size_t>(stream_.total * shape.q_heads), NAN)));
    }
    for (std::int64_t first = 0; first < stream_.total; first += chunk_) {
      const std::int64_t count = std::min(chunk_, stream_.total - first);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        const bool last = l + 1 == shape.layers;
        prefill_->attend({.layer = l,
                          .tokens = count,
                          .q = q[at].floats() + first * stream_.q_width(),
                          .k = k[at].floats() + first * stream_.kv_width(),
                          .v = v[at].floats() + first * stream_.kv_width(),
                          .out = out[at].floats() + first * stream_.q_width(),
                          .lse = last ? lse[at].floats() + first * shape.q_heads : nullptr});
      }
    }
    for (std::size_t l = 0; l < outs_.size(); ++l) {
      outs_[l] = place_.get(out[l].floats(), stream_.total * stream_.q_width());
      lses_[l] = place_.get(lse[l].floats(), stream_.total * shape.q_heads);
    }
  }
  void finish() {
    const auto lock = place_.compute().lock();
    prefill_->finish();
  }

  /// Largest error over every `stride`th token, and those next to a chunk's ends.
  double worst(std::int64_t stride = 1) const {
    double worst = 0;
    for (std::int64_t l = 0; l < stream_.shape.layers; ++l) {
      const CausalWindow& window = visible_[static_cast<std::size_t>(l)].window;
      for (std::int64_t p = 0; p < stream_.total; ++p) {
        const std::int64_t in_chunk = p % chunk_;
        if (p % stride != 0 && in_chunk > 0 && in_chunk < chunk_ - 1) continue;
        for (std::int64_t head = 0; head < stream_.shape.q_heads; ++head) {
          const float* out = &outs_[static_cast<std::size_t>(l)][static_cast<std::size_t>(
              p * stream_.q_width() + head * stream_.shape.head_dim)];
          const bool last = l + 1 == stream_.shape.layers;
          const float* lse = &lses_[static_cast<std::size_t>(l)]
                                   [static_cast<std::size_t>(p * stream_.shape.q_heads + head)];
          worst = std::max(worst, stream_.error(l, p, head, place_.is_cuda(), out,
                                                last ? lse : nullptr, [&](std::int64_t row) {
                                                  return window.window == 0 || row < window.sinks ||
                                                         row > p - window.window;
                                                }));
        }
      }
    }
    return worst;
  }

  /// The first `count` rows of every layer are the inputs rounded to bf16, bit for bit.
  void expect_rows(std::int64_t count) const {
    const std::int64_t dim = stream_.shape.head_dim;
    const auto row_of = [&](const std::vector<double>& values, std::int64_t row) {
      std::vector<std::uint16_t> bits;
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto value = static_cast<float>(values[static_cast<std::size_t>(row * dim + j)]);
        std::uint32_t word = 0;
        std::memcpy(&word, &value, sizeof(word));
        bits.push_back(static_cast<std::uint16_t>(word >> 16));
      }
      return bits;
    };
    for (std::int64_t l = 0; l < stream_.shape.layers; ++l) {
      for (std::int64_t head = 0; head < stream_.shape.kv_heads; ++head) {
        const reference::Rows& want = stream_.rows(l, head);
        const RowStore::Arrays arrays = store_.arrays(l, head, 0);
        for (std::int64_t row = 0; row < count; ++row) {
          const auto bytes = static_cast<std::size_t>(dim * 2);
          const std::int64_t at = row * dim * 2;
          ASSERT_EQ(std::memcmp(arrays.keys + at, row_of(want.keys, row).data(), bytes), 0)
              << "key of layer " << l << ", head " << head << ", position " << row;
          ASSERT_EQ(std::memcmp(arrays.values + at, row_of(want.values, row).data(), bytes), 0)
              << "value of layer " << l << ", head " << head << ", position " << row;
        }
      }
    }
  }

  const RowStore& store() const { return store_; }

 private:
  std::unique_ptr<DevicePrefill> make() {
    const auto lock = place_.compute().lock();
    return place_.compute().prefill_attention(stream_.shape, visible_, chunk_, {store_});
  }

  const Place& place_;
  const TokenStream& stream_;
  PrefillVisibility visible_;
  std::int64_t chunk_;
  RowStore store_;  // outlives the prefill
  std::unique_ptr<DevicePrefill> prefill_;
  std::vector<std::vector<float>> outs_, lses_;  // per layer
};

PrefillVisibility same(std::int64_t layers, CausalWindow window) {
  return PrefillVisibility(static_cast<std::size_t>(layers), window);
}

struct Case {
  const char* name;
  AttentionShape shape;
  PrefillVisibility visible;
  std::int64_t tokens, chunk;
  std::int64_t stride = 1;  ///< of the tokens compared
};

AttentionShape stack(std::int64_t layers, std::int64_t q_heads, std::int64_t kv_heads,
                     std::int64_t head_dim) {
  return {.layers = layers, .q_heads = q_heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

AttentionShape capped(AttentionShape shape, float softcap) {
  shape.softcap = softcap;
  return shape;
}

std::vector<Case> cases() {
  const CausalWindow all{};
  return {
      {"one_token", stack(2, 2, 2, 64), same(2, all), 1, 16},
      {"short_last_chunk", stack(2, 6, 2, 64), same(2, all), 150, 64},
      {"chunk_of_one", stack(1, 3, 1, 64), same(1, all), 20, 1},
      {"chunk_beyond_the_text", stack(1, 3, 1, 128), same(1, all), 100, 4096},
      {"one_query_head_per_kv_head", stack(2, 2, 2, 128), same(2, all), 200, 70},
      {"group_of_eight", stack(1, 8, 1, 128), same(1, all), 130, 50},
      {"head_dim_80", stack(1, 2, 1, 80), same(1, all), 90, 40},
      {"head_dim_96", stack(1, 2, 1, 96), same(1, all), 90, 40},
      {"head_dim_256", stack(1, 2, 1, 256), same(1, all), 90, 40},
      {"head_dim_512", stack(1, 2, 1, 512), same(1, all), 90, 40},
      {"head_dim_512_window", stack(2, 8, 2, 512), same(2, {20, 3}), 150, 64},
      {"chunks_too_wide_for_cudnn", stack(1, 2, 1, 512), same(1, all), 2100, 1024, 97},
      {"window_and_sinks", stack(2, 6, 2, 64), same(2, {50, 4}), 300, 64},
      {"window_and_sinks_below_a_chunk", stack(1, 3, 1, 128), same(1, {20, 3}), 260, 100},
      {"window_of_one_without_sinks", stack(1, 2, 1, 64), same(1, {1, 0}), 100, 30},
      {"window_over_everything", stack(1, 2, 1, 64), same(1, {1000, 4}), 100, 30},
      {"sinks_beyond_a_chunk", stack(1, 2, 1, 64), same(1, {10, 70}), 160, 32},
      {"sliding_layers_among_full_ones",
       stack(3, 6, 2, 64),
       {CausalWindow{24, 0}, all, CausalWindow{33, 0}},
       250,
       60},
      {"several_tiles", stack(2, 3, 1, 64), same(2, all), 3000, 300, 97},
      {"several_tiles_of_a_window", stack(2, 2, 2, 64), same(2, {1500, 4}), 2500, 200, 97},
      {"chunks_that_cudnn_may_take", stack(1, 6, 2, 128), same(1, all), 2600, 1024, 97},
      {"odd_chunks_that_cudnn_may_take", stack(1, 2, 1, 64), same(1, all), 5500, 1100, 197},
      {"soft_capped", capped(stack(2, 6, 2, 64), 3), same(2, all), 150, 64},
      {"soft_capped_window", capped(stack(1, 2, 1, 256), 1), same(1, {20, 3}), 150, 40},
      {"soft_capped_chunks", capped(stack(1, 6, 2, 128), 50), same(1, all), 2600, 1024, 97},
  };
}

struct Parameter {
  std::string device;
  Case c;
};

void PrintTo(const Parameter& p, std::ostream* out) { *out << p.c.name << " on " << p.device; }

std::string name_of_case(const testing::TestParamInfo<Parameter>& info) {
  return std::string(info.param.c.name) + "_on_" + info.param.device;
}

std::vector<Parameter> everywhere() {
  std::vector<Parameter> all;
  for (const Case& c : cases()) {
    for (const char* device : {"cpu", "cuda"}) all.push_back({device, c});
  }
  return all;
}

class PrefillAttends : public testing::TestWithParam<Parameter> {};

TEST_P(PrefillAttends, AsFloat64AndStoresTheRoundedRows) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Case& c = GetParam().c;
  const Place place(GetParam().device);
  const TokenStream stream(c.shape, c.tokens);
  PrefillRun run(place, stream, c.visible, c.chunk);
  run.attend();
  for (std::int64_t l = 0; l < c.shape.layers; ++l) EXPECT_LE(run.store().size(l), c.tokens);
  run.expect_rows(run.store().size(0));
  run.finish();
  for (std::int64_t l = 0; l < c.shape.layers; ++l) EXPECT_EQ(run.store().size(l), c.tokens);
  run.expect_rows(c.tokens);
  const double worst = run.worst(c.stride);
  RecordProperty("worst_of_allowed", std::to_string(worst));
  EXPECT_LE(worst, 1.0) << "times what rounding may do";
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillAttends, testing::ValuesIn(everywhere()), name_of_case);

class PrefillOn : public testing::TestWithParam<std::string> {};

TEST_P(PrefillOn, AValueThatIsNotFiniteIsNamedByTheEndAtTheLatest) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const AttentionShape shape = stack(3, 4, 2, 64);
  struct Bad {
    bool key;
    std::int64_t layer, head, position, element;
    float value;
  };
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Bad bad : {Bad{true, 0, 0, 0, 0, NAN}, Bad{false, 2, 1, 99, 63, infinite},
                        Bad{true, 1, 1, 64, 17, -infinite}, Bad{false, 0, 0, 31, 5, NAN}}) {
    TokenStream stream(shape, 100);
    auto& values = bad.key ? stream.k : stream.v;
    values[static_cast<std::size_t>(bad.layer)][static_cast<std::size_t>(
        bad.position * stream.kv_width() + bad.head * shape.head_dim + bad.element)] = bad.value;
    const std::string want = std::string(bad.key ? "K" : "V") + " of layer " +
                             std::to_string(bad.layer) + ", KV head " + std::to_string(bad.head) +
                             ", position " + std::to_string(bad.position);
    PrefillRun run(place, stream, same(3, {}), 32);
    try {
      run.attend();
      run.finish();
      ADD_FAILURE() << want << " was stored";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(want + " "), std::string::npos)
          << error.what() << "\nexpected " << want;
    }
    EXPECT_LE(run.store().size(bad.layer), bad.position / 32 * 32) << "the chunk before it";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PrefillOn, testing::Values("cpu", "cuda"));

// The largest float32 values are finite but round to bf16's infinity.
TEST(CudaPrefill, AValueThatRoundsToInfinityIsRefused) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  TokenStream stream(stack(1, 1, 1, 64), 10);
  stream.k[0][7 * 64 + 3] = std::numeric_limits<float>::max();
  PrefillRun run(place, stream, same(1, {}), 10);
  EXPECT_THROW(
      {
        run.attend();
        run.finish();
      },
      InvalidArgument);
}

TEST(CudaPrefill, RowsInFloat32AndUnknownHeadDimsAreRefused) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const auto message_of = [&](std::int64_t head_dim, DType dtype) -> std::string {
    const TokenStream stream(stack(1, 1, 1, head_dim), 10);
    try {
      const PrefillRun run(place, stream, same(1, {}), 10, dtype);
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message_of(64, DType::f32).find("f32"), std::string::npos);
  EXPECT_NE(message_of(72, DType::bf16).find("72"), std::string::npos);
}

TEST(CudaPrefill, TakesTheMemoryThatItSaysAndGivesItBack) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(stack(2, 6, 2, 64), 600);
  const std::int64_t before = place.device().memory().used;
  {
    const PrefillRun run(place, stream, same(2, {}), 512);
    const std::int64_t said =
        place.compute().prefill_attention_bytes(stream.shape, same(2, {}), {}, 512, 0);
    const std::int64_t taken = place.device().memory().used - before;
    EXPECT_GE(taken, said);
    EXPECT_LE(taken, said + (2 << 20)) << "a page of the driver's at most is lost";
  }
  EXPECT_EQ(place.device().memory().used, before);
}

// Two layers, so that the tiles of one must not be used for the other; rows come back from the
// store two chunks after they left at the earliest.
constexpr std::int64_t delayed_tokens = 1300;
constexpr std::int64_t delayed_chunk = 300;

TEST(CudaPrefill, DelayedCopiesChangeNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(stack(2, 3, 1, 64), delayed_tokens);
  PrefillRun run(place, stream, same(2, {}), delayed_chunk);
  {
    const test::InjectedFaults late(2000, false);
    run.attend();
    run.finish();
  }
  run.expect_rows(delayed_tokens);
  EXPECT_LE(run.worst(13), 1.0);
}

TEST(CudaPrefill, WithoutItsWaitsDelayedCopiesAreSeen) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  // Other tokens than above: memory may still hold those.
  const TokenStream stream(stack(2, 3, 1, 64), delayed_tokens, 50);
  PrefillRun run(place, stream, same(2, {}), delayed_chunk);
  {
    const test::InjectedFaults late(2000, true);
    run.attend();
    try {
      run.finish();
    } catch (const InvalidArgument&) {  // rows may be anything
    }
  }
  EXPECT_GT(run.worst(13), 1.0) << "the test above could not see a missing wait";
}

}  // namespace
}  // namespace topkv
