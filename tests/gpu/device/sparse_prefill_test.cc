// A sparse prefill on a device: its choice and its attention against float64, and the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/gpu/faults_guard.h"
#include "tests/support/block_choice_reference.h"
#include "tests/support/token_stream.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using ::test::ChoiceRules;
using ::test::Place;
using ::test::TokenStream;

PrefillAttention sparse_attention(const ChoiceRules& rules) {
  return {.mode = Prefill::sparse,
          .window = rules.window,
          .sinks = rules.sinks,
          .keys = rules.most,
          .least_keys = rules.least,
          .mass = rules.mass};
}

/// Results of a prefill of a stream's tokens in steps of `chunk`.
struct SparseRun {
  std::vector<std::vector<float>> out, lse;  // [layers]
  std::vector<PrefillShare> shares;

  SparseRun(const Place& place, const TokenStream& stream, const PrefillAttention& attention,
            std::int64_t chunk, KvDType dtype = {}) {
    const AttentionShape& shape = stream.shape;
    ContextBuilder builder(
        shape, {.capacity = stream.total, .dtype = dtype, .attention = attention}, place.device());
    std::vector<Buffer> q, q_next, q_far, k, v, outs, lses;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      q.push_back(place.put(stream.q[l]));
      if (shape.chunk_len > 0) {
        q_next.push_back(place.put(stream.q_next[l]));
        q_far.push_back(place.put(stream.q_far[l]));
      }
      k.push_back(place.put(stream.k[l]));
      v.push_back(place.put(stream.v[l]));
      outs.push_back(place.put(std::vector<float>(stream.q[l].size(), NAN)));
      lses.push_back(place.put(
          std::vector<float>(static_cast<std::size_t>(stream.total * shape.q_heads), NAN)));
    }
    for (std::int64_t first = 0; first < stream.total; first += chunk) {
      const std::int64_t count = std::min(chunk, stream.total - first);
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        const auto l = static_cast<std::size_t>(layer);
        const std::int64_t at = first * stream.q_width();
        AttentionStep step{.layer = layer,
                           .tokens = count,
                           .q = q[l].floats() + at,
                           .out = outs[l].floats() + at,
                           .lse = lses[l].floats() + first * shape.q_heads};
        if (shape.has_rows(layer)) {
          step.k = k[l].floats() + first * stream.kv_width();
          if (!shape.keys_are_values) step.v = v[l].floats() + first * stream.kv_width();
        }
        if (shape.chunk_len > 0) {
          step.q_next = q_next[l].floats() + at;
          // Queries that are alike may be one array.
          step.q_far = stream.q_far == stream.q_next ? step.q_next : q_far[l].floats() + at;
        }
        builder.attend(step);
      }
    }
    builder.synchronize();
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      out.push_back(place.get(outs[l].floats(), std::ssize(stream.q[l])));
      lse.push_back(place.get(lses[l].floats(), stream.total * shape.q_heads));
      shares.push_back(builder.share(layer));
    }
  }
};

struct SparseCase {
  std::string device;
  std::string name;
  std::int64_t q_heads, kv_heads, head_dim;
  ChoiceRules rules;
  std::int64_t chunk = 512;
  std::int64_t tokens = 1500;
  float softcap = 0;
  std::int64_t layers = 1;
  std::vector<std::int64_t> row_layer = {};
  std::int64_t chunk_len = 0;
  bool keys_are_values = false;
  bool one_far_form = false;  ///< with chunks: q_far is q_next

  AttentionShape shape() const {
    AttentionShape shape;
    shape.layers = layers;
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.softcap = softcap;
    shape.row_layer = row_layer;
    shape.chunk_len = chunk_len;
    shape.keys_are_values = keys_are_values;
    return shape;
  }
};

void PrintTo(const SparseCase& c, std::ostream* out) { *out << c.name << " on " << c.device; }

class DeviceSparsePrefill : public testing::TestWithParam<SparseCase> {};

TEST_P(DeviceSparsePrefill, AttendsWhatFloat64Chooses) {
  const SparseCase& c = GetParam();
  TOPKV_NEEDS_DEVICE(c.device);
  const Place place(c.device);
  TokenStream stream(c.shape(), c.tokens);
  if (c.one_far_form) stream.q_far = stream.q_next;
  const SparseRun run(place, stream, sparse_attention(c.rules), c.chunk);
  // A CUDA device scores means in bf16: it may choose otherwise where shares are near.
  const double least_margin = place.is_cuda() ? 5e-3 : 1e-5;
  std::int64_t pieces = 0;
  std::int64_t decided = 0;
  std::int64_t chose = 0;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    double keys = 0;
    double mass = 0;
    for (std::int64_t first = 0, next = 0; first < stream.total; first = next) {
      next = std::min({stream.total, first / 128 * 128 + 128, (first / c.chunk + 1) * c.chunk});
      for (std::int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
        const ::test::ReferenceChoice choice =
            ::test::reference_choice(stream, layer, kv_head, first, next, c.rules);
        const auto visible = [&](std::int64_t row) { return choice.blocks.contains(row / 64); };
        for (std::int64_t p = first; p < next; ++p)
          for (std::int64_t row = 0; row <= p; ++row) keys += visible(row) ? 1 : 0;
        mass += choice.mass * static_cast<double>(next - first);
        ++pieces;
        chose += static_cast<std::int64_t>(choice.blocks.size()) < (next - 1) / 64 + 1;
        if (choice.margin < least_margin) continue;
        ++decided;
        for (std::int64_t p = first; p < next; p += 31) {
          const std::int64_t head =
              kv_head * (c.q_heads / c.kv_heads) + p % (c.q_heads / c.kv_heads);
          const std::int64_t at = p * c.q_heads + head;
          ASSERT_LE(stream.error(layer, p, head, place.is_cuda(),
                                 &run.out[l][static_cast<std::size_t>(at * c.head_dim)],
                                 &run.lse[l][static_cast<std::size_t>(at)], visible),
                    1)
              << "layer " << layer << ", token " << p << ", head " << head << ", margin "
              << choice.margin;
        }
      }
    }
    EXPECT_EQ(run.shares[l].queries, stream.total * c.kv_heads);
    if (c.rules.mass == 1) {
      EXPECT_EQ(run.shares[l].keys, keys);
    }
    EXPECT_NEAR(run.shares[l].mass / mass, 1, place.is_cuda() ? 5e-3 : 1e-4);
  }
  EXPECT_GT(chose, pieces / 3);
  EXPECT_GT(decided, pieces / 3) << "take other sizes, or another seed";
}

std::vector<SparseCase> sparse_cases() {
  const ChoiceRules usual{.window = 70, .sinks = 5, .most = 128};
  std::vector<SparseCase> cases;
  for (const char* device : {"cpu", "cuda"}) {
    for (const SparseCase& c : std::vector<SparseCase>{
             {device, "usual", 2, 2, 64, usual},
             {device, "groups_of_7", 14, 2, 128, usual},
             {device, "groups_of_3", 6, 2, 64, usual},
             {device, "groups_of_16", 16, 1, 128, usual},
             {device, "head_dim_80", 2, 1, 80, usual},
             {device, "head_dim_96", 4, 1, 96, usual},
             {device, "head_dim_256", 8, 1, 256, usual},
             {device,
              "mass",
              3,
              1,
              64,
              {.window = 64, .sinks = 64, .most = 512, .least = 64, .mass = 0.8}},
             {device, "steps_within_blocks", 4, 2, 64, usual, 100},
             {device, "one_step", 4, 2, 64, usual, 1500},
             {device, "capped", 4, 2, 64, usual, 512, 1500, 3.0F},
             {device, "shared_rows", 2, 1, 64, usual, 512, 1500, 0.0F, 2, {0, 0}},
             {device, "several_layers", 4, 2, 64, usual, 256, 1500, 0.0F, 3},
             {device, "groups_of_40", 40, 1, 64, usual, 512, 1000},
             {device, "groups_of_20_wide", 20, 1, 256, usual, 512, 1000},
             {device, "head_dim_512", 4, 2, 512, usual, 512, 1000},
             {.device = device,
             .name = "latents",
             .q_heads = 20,
             .kv_heads = 1,
             .head_dim = 576,
             .rules = usual,
             .tokens = 1000,
             .keys_are_values = true},
             {.device = device,
             .name = "keys_are_values",
             .q_heads = 4,
             .kv_heads = 2,
             .head_dim = 64,
             .rules = usual,
             .keys_are_values = true},
             {.device = device,
             .name = "dual_chunks",
             .q_heads = 4,
             .kv_heads = 2,
             .head_dim = 128,
             .rules = usual,
             .chunk_len = 384},
             {.device = device,
             .name = "dual_chunks_with_one_far_form",
             .q_heads = 4,
             .kv_heads = 2,
             .head_dim = 64,
             .rules = usual,
             .chunk = 300,
             .chunk_len = 256,
             .one_far_form = true},
             {.device = device,
             .name = "dual_chunks_of_latents",
             .q_heads = 20,
             .kv_heads = 1,
             .head_dim = 576,
             .rules = usual,
             .tokens = 1000,
             .chunk_len = 384,
             .keys_are_values = true}})
      cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceSparsePrefill, testing::ValuesIn(sparse_cases()),
                         [](const auto& info) {
                           return info.param.name + "_on_" + info.param.device;
                         });

class SparsePrefillOn : public testing::TestWithParam<std::string> {};

TEST_P(SparsePrefillOn, WithABudgetAboveTheTextIsDenseBitForBit) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape;
  shape.layers = 2;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  const TokenStream stream(shape, 1500);
  const SparseRun dense(place, stream, {}, 512);
  const SparseRun all(place, stream,
                      sparse_attention({.window = 70, .sinks = 5, .most = 1536}), 512);
  EXPECT_EQ(all.out, dense.out);
  EXPECT_EQ(all.lse, dense.lse);
  EXPECT_EQ(all.shares[0].keys, all.shares[0].dense_keys);
}

TEST_P(SparsePrefillOn, OfStepsOfAnyMultipleOfABlockIsTheSame) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape;
  shape.layers = 1;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  const TokenStream stream(shape, 12000);
  // From 11,000 tokens on nothing is attended in full, so that every step is a choice.
  const PrefillAttention attention =
      sparse_attention({.window = 70, .sinks = 5, .most = 1024, .least = 64, .mass = 0.9});
  const SparseRun first(place, stream, attention, 1280);
  const SparseRun other(place, stream, attention, 12000);
  const auto at = static_cast<std::size_t>(11000 * stream.q_width());
  for (std::size_t i = at; i < first.out[0].size(); ++i)
    ASSERT_EQ(first.out[0][i], other.out[0][i]) << i;
  EXPECT_EQ(first.shares[0].keys, other.shares[0].keys);
}

TEST_P(SparsePrefillOn, OverRowsInBlocksIsThatOfTheHost) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const Place host("cpu");
  AttentionShape shape;
  shape.layers = 2;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 128;
  const TokenStream stream(shape, 2000);
  const PrefillAttention attention = sparse_attention({.window = 70, .sinks = 5, .most = 256});
  for (const char* dtype : {"bf16", "q8", "q4", "q8/q4"}) {
    const SparseRun here(place, stream, attention, 700, KvDType::parse(dtype));
    const SparseRun there(host, stream, attention, 700, KvDType::parse(dtype));
    for (std::size_t layer = 0; layer < 2; ++layer) {
      std::size_t far = 0;
      for (std::size_t i = 0; i < here.out[layer].size(); ++i)
        far += !(std::abs(here.out[layer][i] - there.out[layer][i]) < 0.05F);
      // Rounded means may choose another block where shares are near.
      EXPECT_LT(far, here.out[layer].size() / 20) << dtype << ", layer " << layer;
      EXPECT_EQ(here.shares[layer].keys, there.shares[layer].keys) << dtype;
      EXPECT_NEAR(here.shares[layer].mass / there.shares[layer].mass, 1, 0.01) << dtype;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SparsePrefillOn, testing::Values("cpu", "cuda"));

// Lists and candidates of many tiles, so that kernels reuse what they copy tiles to.
TEST(CudaSparsePrefill, OverManyBlocksIsThatOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Place host("cpu");
  AttentionShape shape;
  shape.layers = 1;
  shape.q_heads = 3;
  shape.kv_heads = 1;
  for (const std::int64_t dim : {64, 128}) {
    shape.head_dim = dim;
    const TokenStream stream(shape, 16000);
    const PrefillAttention attention = sparse_attention({.window = 70, .sinks = 5, .most = 1024});
    const SparseRun here(place, stream, attention, 4000);
    const SparseRun there(host, stream, attention, 4000);
    std::size_t far = 0;
    for (std::size_t i = 0; i < here.out[0].size(); ++i)
      far += !(std::abs(here.out[0][i] - there.out[0][i]) < 0.05F);
    EXPECT_LT(far, here.out[0].size() / 20) << dim;
    EXPECT_EQ(here.shares[0].keys, there.shares[0].keys) << dim;
    EXPECT_NEAR(here.shares[0].mass / there.shares[0].mass, 1, 0.01) << dim;
  }
}

// Two layers, so that the rows of one must not be used for the other. With rows in blocks, each
// slot that they are copied to is used again.
struct DelayedCase {
  const char* dtype;
  std::int64_t tokens, chunk;
  std::vector<std::int64_t> row_layer = {};  // one layer's rows for both: some have just left

  TokenStream stream(unsigned seed) const {
    AttentionShape shape;
    shape.layers = 2;
    shape.q_heads = 3;
    shape.kv_heads = 1;
    shape.head_dim = 64;
    shape.row_layer = row_layer;
    return {shape, tokens, seed};
  }
  SparseRun run(const Place& place, const TokenStream& stream) const {
    const PrefillAttention attention = sparse_attention({.window = 70, .sinks = 5, .most = 256});
    return {place, stream, attention, chunk, KvDType::parse(dtype)};
  }
};

std::vector<DelayedCase> delayed_cases() {
  return {{"bf16", 1300, 300}, {"bf16", 1300, 300, {0, 0}}, {"q8", 60000, 20000}};
}

TEST(CudaSparsePrefill, DelayedCopiesChangeNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const DelayedCase& c : delayed_cases()) {
    const TokenStream stream = c.stream(40);
    // The delayed run comes first: memory that is used again may still hold the right rows.
    const auto delayed = [&] {
      const ::test::InjectedFaults late(2000, false);
      return c.run(place, stream);
    }();
    const SparseRun usual = c.run(place, stream);
    EXPECT_EQ(delayed.out, usual.out) << c.dtype;
    EXPECT_EQ(delayed.lse, usual.lse) << c.dtype;
    EXPECT_EQ(delayed.shares[1].keys, usual.shares[1].keys) << c.dtype;
    EXPECT_LT(usual.shares[1].keys, usual.shares[1].dense_keys) << "no token had a choice";
  }
}

TEST(CudaSparsePrefill, WithoutItsWaitsDelayedCopiesAreSeen) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const DelayedCase& c : delayed_cases()) {
    const TokenStream stream = c.stream(50);  // other tokens than above
    std::vector<std::vector<float>> out;
    try {
      const ::test::InjectedFaults late(2000, true);
      out = c.run(place, stream).out;
    } catch (const InvalidArgument&) {  // rows may be anything
    }
    EXPECT_NE(out, c.run(place, stream).out) << "the test above could not see a missing wait";
  }
}

TEST(CudaSparsePrefill, TakesNoMemoryForBlocksThatTheTextLacks) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream = delayed_cases()[0].stream(60);
  const auto bytes = [&](std::int64_t window, std::int64_t sinks) {
    const PrefillVisibility visible(2, LayerVisibility({window, sinks}, {.most = 8192}));
    return place.compute().prefill_attention_bytes(stream.shape, visible, {}, 2048, stream.total);
  };
  const std::int64_t whole = bytes(stream.total, stream.total);
  EXPECT_LE(bytes(64, 0), whole);
  EXPECT_EQ(bytes(131072, 4), whole);
  EXPECT_EQ(bytes(std::int64_t{1} << 40, std::int64_t{1} << 40), whole);
  const SparseRun dense(place, stream, {}, 300);
  const SparseRun all(place, stream,
                      sparse_attention({.window = std::int64_t{1} << 40, .sinks = 4, .most = 64}),
                      300);
  EXPECT_EQ(all.out, dense.out);
}

TEST(CudaSparsePrefill, RefusesHeadsThatItDoesNotKnow) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  AttentionShape shape;
  shape.layers = 1;
  shape.q_heads = 160;
  shape.kv_heads = 1;
  shape.head_dim = 64;
  const TokenStream stream(shape, 128);
  try {
    SparseRun(place, stream, sparse_attention({.window = 64, .most = 64}), 128);
    FAIL() << "not refused";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("160 query heads"), std::string::npos) << error.what();
  }
}

TEST(CudaSparsePrefill, RefusesToMeasure) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  AttentionShape shape;
  shape.layers = 1;
  shape.q_heads = 2;
  shape.kv_heads = 1;
  shape.head_dim = 64;
  const TokenStream stream(shape, 128);
  PrefillAttention attention = sparse_attention({.window = 64, .most = 64});
  attention.measure = true;
  EXPECT_THROW(SparseRun(place, stream, attention, 128), Unsupported);
}

}  // namespace
}  // namespace topkv
