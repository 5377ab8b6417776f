// A sparse prefill: which keys blocks of tokens choose, and their attention, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <ostream>
#include <stop_token>
#include <string>
#include <vector>

#include "src/core/threads/stopping.h"
#include "tests/support/chosen_attention.h"
#include "tests/support/failing.h"
#include "tests/support/token_stream.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using ::test::ChoiceRules;
using ::test::expect_chosen;
using ::test::give_tokens;
using ::test::sparse;
using ::test::SparseOuts;
using ::test::TokenStream;

ContextBuilder sparse_builder(const TokenStream& stream, const PrefillAttention& attention,
                              KvDType dtype = DType::bf16) {
  return {stream.shape, {.capacity = stream.total, .dtype = dtype, .attention = attention}};
}

struct SparseCase {
  std::string name;
  AttentionShape shape;
  ChoiceRules rules;
  std::int64_t chunk = 256;
};

void PrintTo(const SparseCase& c, std::ostream* out) { *out << c.name; }

AttentionShape heads_shape(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t dim) {
  AttentionShape shape;
  shape.layers = 1;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = dim;
  return shape;
}

SparseCase changed(SparseCase c, const std::function<void(AttentionShape&)>& change) {
  change(c.shape);
  return c;
}

class SparsePrefill : public testing::TestWithParam<SparseCase> {};

TEST_P(SparsePrefill, AttendsWhatFloat64Chooses) {
  const SparseCase& c = GetParam();
  const TokenStream stream(c.shape, 900);
  ContextBuilder builder = sparse_builder(stream, sparse(c.rules));
  SparseOuts outs(stream);
  give_tokens(builder, stream, 0, stream.total, c.chunk, outs);
  const std::vector<PrefillShare> wanted =
      expect_chosen(stream, c.rules, 0, stream.total, c.chunk, outs);
  for (std::int64_t layer = 0; layer < c.shape.layers; ++layer) {
    const PrefillShare share = builder.share(layer);
    const PrefillShare& want = wanted[static_cast<std::size_t>(layer)];
    EXPECT_EQ(share.queries, want.queries);
    EXPECT_EQ(share.keys, want.keys);
    EXPECT_EQ(share.dense_keys, want.dense_keys);
    EXPECT_NEAR(share.mass / want.mass, 1, 1e-4);
  }
}

const SparseCase sparse_usual{
    "usual", heads_shape(2, 2, 16), {.window = 70, .sinks = 5, .most = 128}};

INSTANTIATE_TEST_SUITE_P(
    Cases, SparsePrefill,
    testing::Values(
        sparse_usual,
        SparseCase{"groups", heads_shape(6, 2, 16), {.window = 70, .sinks = 5, .most = 128}},
        SparseCase{"no_sinks", heads_shape(2, 1, 16), {.window = 1, .sinks = 0, .most = 64}},
        SparseCase{"mass",
                   heads_shape(3, 1, 16),
                   {.window = 64, .sinks = 64, .most = 512, .least = 64, .mass = 0.8}},
        SparseCase{"steps_within_blocks",
                   heads_shape(4, 2, 16),
                   {.window = 70, .sinks = 5, .most = 128},
                   100},
        SparseCase{"few_tokens", heads_shape(2, 1, 16), {.window = 70, .sinks = 5, .most = 128}, 5},
        changed({"capped", heads_shape(2, 1, 16), {.window = 70, .sinks = 5, .most = 128}},
                [](AttentionShape& shape) { shape.softcap = 3; }),
        changed({"dual_chunks", heads_shape(2, 1, 16), {.window = 70, .sinks = 5, .most = 128}},
                [](AttentionShape& shape) { shape.chunk_len = 256; }),
        changed({"shared_rows", heads_shape(2, 1, 16), {.window = 70, .sinks = 5, .most = 128}},
                [](AttentionShape& shape) {
                  shape.layers = 2;
                  shape.row_layer = {0, 0};
                }),
        changed({"keys_are_values", heads_shape(3, 1, 32), {.window = 70, .sinks = 5, .most = 128}},
                [](AttentionShape& shape) { shape.keys_are_values = true; })),
    [](const auto& info) { return info.param.name; });

TEST(SparsePrefill, WithABudgetAboveTheTextIsDenseBitForBit) {
  const TokenStream stream(sparse_usual.shape, 900);
  SparseOuts dense(stream), chosen(stream);
  ContextBuilder all = sparse_builder(stream, {});
  give_tokens(all, stream, 0, stream.total, 200, dense);
  ContextBuilder builder = sparse_builder(stream, sparse({.window = 70, .sinks = 5, .most = 900}));
  give_tokens(builder, stream, 0, stream.total, 200, chosen);
  EXPECT_EQ(chosen.out, dense.out);
  EXPECT_EQ(chosen.lse, dense.lse);
  EXPECT_EQ(builder.share(0).keys, builder.share(0).dense_keys);
  EXPECT_EQ(builder.share(0).mass, static_cast<double>(builder.share(0).queries));
  EXPECT_EQ(all.share(0).queries, 0);
}

TEST(SparsePrefill, OfStepsOfAnyMultipleOfABlockIsTheSame) {
  const TokenStream stream(sparse_usual.shape, 900);
  SparseOuts first(stream);
  ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(builder, stream, 0, stream.total, 128, first);
  for (const std::int64_t chunk : {256, 640, 900}) {
    SparseOuts outs(stream);
    ContextBuilder other = sparse_builder(stream, sparse(sparse_usual.rules));
    give_tokens(other, stream, 0, stream.total, chunk, outs);
    // Products of other numbers of tokens may sum in another order (seen with AVX2).
    EXPECT_LT(reference::distance(outs.out, first.out), 1e-6) << chunk;
    EXPECT_LT(reference::distance(outs.lse, first.lse), 1e-6) << chunk;
    EXPECT_EQ(other.share(0).keys, builder.share(0).keys) << chunk;
    EXPECT_NEAR(other.share(0).mass, builder.share(0).mass, 1e-9 * builder.share(0).mass) << chunk;
  }
}

TEST(SparsePrefill, OverRowsInBlocksIsNearThatOverTheirValues) {
  const TokenStream stream(heads_shape(2, 1, 64), 900);
  SparseOuts outs(stream), rounded(stream);
  ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules), KvDType::parse("q8"));
  give_tokens(builder, stream, 0, stream.total, 300, rounded);
  ContextBuilder exact = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(exact, stream, 0, stream.total, 300, outs);
  double off = 0;
  double size = 0;
  for (std::size_t i = 0; i < outs.out[0].size(); ++i) {
    off += std::pow(outs.out[0][i] - rounded.out[0][i], 2);
    size += std::pow(outs.out[0][i], 2);
  }
  EXPECT_LT(std::sqrt(off / size), 0.1);  // most blocks chosen are the same
}

TEST(SparsePrefill, GoesOnBehindTokensThatWereTakenBack) {
  const TokenStream stream(sparse_usual.shape, 900);
  const TokenStream other(sparse_usual.shape, 900, 77);
  SparseOuts outs(stream), unused(stream), again(stream);
  ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(builder, stream, 0, 384, 128, outs);
  give_tokens(builder, other, 384, 768, 128, unused);
  builder.truncate(384);
  give_tokens(builder, stream, 384, stream.total, 128, outs);
  ContextBuilder fresh = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(fresh, stream, 0, stream.total, 128, again);
  EXPECT_EQ(outs.out, again.out);
}

TEST(SparsePrefill, AStepThatFailsLeavesNoMeansOfItsKeys) {
  const TokenStream stream(sparse_usual.shape, 900);
  TokenStream bad(sparse_usual.shape, 900, 77);
  bad.v[0][static_cast<std::size_t>(700 * bad.kv_width())] =
      std::numeric_limits<float>::quiet_NaN();
  SparseOuts outs(stream), unused(stream), again(stream);
  ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(builder, stream, 0, 384, 128, outs);
  EXPECT_THROW(give_tokens(builder, bad, 384, 768, 384, unused), InvalidArgument);
  give_tokens(builder, stream, 384, stream.total, 128, outs);
  ContextBuilder fresh = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(fresh, stream, 0, stream.total, 128, again);
  EXPECT_EQ(outs.out, again.out);
}

// Chunks of dual chunk attention are attended one after the other: a step may fail when some of
// them are done.
TEST(SparsePrefill, AStepThatFailsAnywhereCountsOnce) {
  AttentionShape shape = sparse_usual.shape;
  shape.chunk_len = 256;
  const TokenStream stream(shape, 900);
  SparseOuts outs(stream);
  ContextBuilder fresh = sparse_builder(stream, sparse(sparse_usual.rules));
  give_tokens(fresh, stream, 0, stream.total, 450, outs);
  const PrefillShare want = fresh.share(0);
  const std::stop_source nobody;
  const std::stop_token token = nobody.get_token();  // loops that may be stopped may fail
  const StopScope scope(&token);
  const std::int64_t places = ::test::fail_everywhere([&](std::int64_t n) {
    SparseOuts again(stream);
    ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules));
    for (std::int64_t begin = 0; begin < stream.total;) {
      try {
        give_tokens(builder, stream, begin, begin + 450, 450, again);
        begin += 450;
      } catch (const std::bad_alloc&) {
        ASSERT_EQ(builder.tokens(0), begin);
      }
    }
    ASSERT_EQ(again.out, outs.out) << n;
    const PrefillShare share = builder.share(0);
    ASSERT_EQ(share.queries, want.queries) << n;
    ASSERT_EQ(share.mass, want.mass) << n;
    ASSERT_EQ(share.keys, want.keys) << n;
    ASSERT_EQ(share.dense_keys, want.dense_keys) << n;
  });
  EXPECT_GT(places, 20);
}

TEST(SparsePrefill, OutMayBeTheQueries) {
  for (const std::int64_t chunk_len : {0, 256}) {
    AttentionShape shape = sparse_usual.shape;
    shape.chunk_len = chunk_len;
    TokenStream stream(shape, 900);
    SparseOuts outs(stream);
    ContextBuilder builder = sparse_builder(stream, sparse(sparse_usual.rules));
    give_tokens(builder, stream, 0, stream.total, 300, outs);
    ContextBuilder in_place = sparse_builder(stream, sparse(sparse_usual.rules));
    for (std::int64_t first = 0; first < stream.total; first += 300) {
      const std::int64_t q = first * stream.q_width();
      in_place.attend({.layer = 0,
                       .tokens = 300,
                       .q = &stream.q[0][q],
                       .k = &stream.k[0][first * stream.kv_width()],
                       .v = &stream.v[0][first * stream.kv_width()],
                       .out = &stream.q[0][q],
                       .q_next = chunk_len > 0 ? &stream.q_next[0][q] : nullptr,
                       .q_far = chunk_len > 0 ? &stream.q_far[0][q] : nullptr});
    }
    EXPECT_EQ(stream.q[0], outs.out[0]) << chunk_len;
  }
}

TEST(SparsePrefill, RefusesWhatItCannotDo) {
  const TokenStream stream(sparse_usual.shape, 128);
  const auto message = [&](const ChoiceRules& rules, std::int64_t chunk_len = 0) -> std::string {
    AttentionShape shape = sparse_usual.shape;
    shape.chunk_len = chunk_len;
    try {
      ContextBuilder(shape, {.capacity = 128, .attention = sparse(rules)});
    } catch (const Error& error) {
      return error.what();
    }
    return "(not refused)";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(has, message({.window = 0, .most = 64}), "window of 0 tokens");
  EXPECT_PRED2(has, message({.window = 1, .most = 0}), "up to 0 keys");
  EXPECT_PRED2(has, message({.window = 1, .most = 64, .least = 65}), "65 or more");
  EXPECT_PRED2(has, message({.window = 1, .most = 64, .mass = 0}), "a mass of 0");
  EXPECT_PRED2(has, message({.window = 1, .most = 64, .mass = NAN}), "a mass of nan");
  EXPECT_PRED2(has, message({.window = 1, .most = 64}, 100), "chunks of 100 tokens");
}

}  // namespace
}  // namespace topkv
