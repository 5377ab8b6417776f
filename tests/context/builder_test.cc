// Prefill in steps, for an application that owns its network: what each token sees, in float64;
// contexts sharded by sequence; room; refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Stream;
using test::tolerance;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "(not refused)";
}

/// out and lse of every layer and token.
struct Outs {
  explicit Outs(const Stream& stream)
      : out(stream.q.size(), std::vector<float>(stream.q[0].size(), -7.0F)),
        lse(stream.q.size(),
            std::vector<float>(static_cast<std::size_t>(stream.total * stream.shape.q_heads))) {}

  std::vector<std::vector<float>> out, lse;
};

/// The step of tokens [begin, begin + count) into `outs`.
AttentionStep step_into(const Stream& stream, Outs& outs, std::int64_t layer, std::int64_t begin,
                        std::int64_t count) {
  return stream.step(layer, begin, count, &outs.out[layer][begin * stream.q_width()],
                     &outs.lse[layer][begin * stream.shape.q_heads]);
}

/// Gives the builder tokens in calls of these sizes, from `begin` on.
void give(ContextBuilder& builder, const Stream& stream, const std::vector<std::int64_t>& calls,
          Outs& outs, std::int64_t begin = 0) {
  for (const std::int64_t count : calls) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(step_into(stream, outs, l, begin, count));
    begin += count;
  }
}

void expect_rows(const Context& context, const Stream& stream, std::int64_t tokens) {
  ASSERT_EQ(context.tokens(), tokens);
  const std::int64_t d = stream.shape.head_dim;
  for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
    for (std::int64_t h = 0; h < stream.shape.kv_heads; ++h) {
      const RowsView rows = context.rows(l, h);
      ASSERT_EQ(rows.keys.dtype, DType::f32);
      const std::int64_t first = context.first_row(l);
      const std::int64_t window = stream.shape.window_of(l);
      ASSERT_EQ(first, window > 0 ? std::max<std::int64_t>(0, tokens - window) : 0);
      ASSERT_EQ(rows.count(), tokens - first);
      for (std::int64_t t = first; t < tokens; ++t) {
        const auto* key = reinterpret_cast<const float*>(rows.key(t - first));
        const auto* value = reinterpret_cast<const float*>(rows.value(t - first));
        const std::int64_t from = t * stream.kv_width() + h * d;
        for (std::int64_t j = 0; j < d; ++j) {
          ASSERT_EQ(key[j], stream.k[l][from + j]) << "token " << t;
          ASSERT_EQ(value[j], stream.v[l][from + j]) << "token " << t;
        }
      }
    }
  }
}

struct Case {
  const char* name;
  PrefillAttention attention;
  std::vector<std::int64_t> sliding_window;
  float softcap;
  std::vector<std::int64_t> calls;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class BuilderSteps : public testing::TestWithParam<Case> {};

TEST_P(BuilderSteps, EqualFloat64) {
  const Case& c = GetParam();
  const AttentionShape shape{.layers = 2,
                             .q_heads = 6,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .softcap = c.softcap,
                             .sliding_window = c.sliding_window};
  std::int64_t total = 0;
  for (const std::int64_t count : c.calls) total += count;
  const Stream stream(shape, total);
  ContextBuilder builder(shape, {.capacity = total, .dtype = DType::f32, .attention = c.attention});
  Outs outs(stream);
  give(builder, stream, c.calls, outs);
  EXPECT_EQ(builder.tokens(0), total);
  for (std::int64_t l = 0; l < 2; ++l) {
    const bool sliding = shape.window_of(l) > 0;
    const bool all = !sliding && c.attention.mode == Prefill::dense;
    const std::int64_t window = sliding ? shape.window_of(l) : c.attention.window;
    const std::int64_t sinks = sliding ? 0 : c.attention.sinks;
    for (std::int64_t h = 0; h < 6; ++h) {
      const reference::Rows rows = stream.rows(l, h / 3, total);
      for (std::int64_t p = 0; p < total; ++p) {
        const std::int64_t at = p * stream.q_width() + h * 16;
        const auto want = reference::attend(
            rows, &stream.q[l][at], shape.softmax_scale(),
            [&](std::int64_t x) { return x <= p && (all || x < sinks || x > p - window); },
            c.softcap);
        for (std::int64_t j = 0; j < 16; ++j)
          ASSERT_NEAR(outs.out[l][at + j], want.out[j], tolerance) << "token " << p;
        ASSERT_NEAR(outs.lse[l][p * 6 + h], want.lse, tolerance * (1 + std::abs(want.lse)))
            << "token " << p;
      }
    }
  }
  expect_rows(*builder.freeze(), stream, total);
}

const PrefillAttention windowed{.mode = Prefill::window, .window = 20, .sinks = 3};

INSTANTIATE_TEST_SUITE_P(Kinds, BuilderSteps,
                         testing::Values(Case{"dense", {}, {}, 0, {60, 1, 1, 100, 7}},
                                         Case{"window", windowed, {}, 0, {60, 1, 1, 100, 7}},
                                         Case{"sliding", {}, {0, 12}, 0, {60, 1, 1, 100, 7}},
                                         Case{"first_call_of_one_token", {}, {}, 0, {1, 30}},
                                         Case{"soft_capped", {}, {}, 1.5F, {60, 1, 1, 100, 7}},
                                         Case{"soft_capped_window", windowed, {7, 0}, 0.3F, {90}}),
                         [](const auto& info) { return info.param.name; });

TEST(ContextBuilder, LogSumExpIsOptional) {
  const Stream stream({.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder with(stream.shape, {.capacity = 20});
  ContextBuilder without(stream.shape, {.capacity = 20});
  Outs a(stream);
  Outs b(stream);
  with.attend(step_into(stream, a, 0, 0, 20));
  AttentionStep step = step_into(stream, b, 0, 0, 20);
  step.lse = nullptr;
  without.attend(step);
  EXPECT_EQ(a.out, b.out);
}

TEST(ContextBuilder, ReservingInTheMiddleEqualsReservingAtOnce) {
  const Stream stream({.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16}, 300);
  const std::vector<std::int64_t> first = {60, 40};
  const std::vector<std::int64_t> second = {1, 99, 100};
  Outs want(stream);
  ContextBuilder at_once(stream.shape, {.capacity = 300, .dtype = DType::f32});
  give(at_once, stream, first, want);
  give(at_once, stream, second, want, 100);
  Outs got(stream);
  ContextBuilder grown(stream.shape, {.capacity = 100, .dtype = DType::f32});
  grown.reserve(100);
  EXPECT_EQ(grown.capacity(), 100);
  give(grown, stream, first, got);
  grown.reserve(300);
  EXPECT_EQ(grown.capacity(), 300);
  EXPECT_EQ(grown.tokens(1), 100);
  grown.reserve(10);
  EXPECT_EQ(grown.capacity(), 300) << "room was given back";
  give(grown, stream, second, got, 100);
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.lse, want.lse);
  expect_rows(*grown.freeze(), stream, 300);
}

TEST(ContextBuilder, ReservingForStepsOfAChunkChangesNoResult) {
  const Stream stream({.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16}, 200);
  Outs want(stream);
  ContextBuilder plain(stream.shape, {.capacity = 200, .dtype = DType::f32});
  give(plain, stream, {60, 40, 100}, want);
  Outs got(stream);
  ContextBuilder builder(stream.shape, {.capacity = 100, .dtype = DType::f32});
  builder.reserve(100, 60);
  give(builder, stream, {60, 40}, got);
  builder.reserve(200, 30);  // a step may have more
  EXPECT_EQ(builder.tokens(1), 100);
  give(builder, stream, {100}, got, 100);
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.lse, want.lse);
  expect_rows(*builder.freeze(), stream, 200);
}

TEST(ContextBuilder, ReservingMoreThanTheBudgetIsRefusedAndChangesNothing) {
  const Stream stream({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape,
                         {.capacity = 10, .dtype = DType::f32, .memory_budget = 15 * 2 * 8 * 4});
  Outs outs(stream);
  give(builder, stream, {10}, outs);
  EXPECT_THROW(builder.reserve(16), OutOfMemory);
  EXPECT_EQ(builder.capacity(), 10);
  builder.reserve(15);
  give(builder, stream, {5}, outs, 10);
  expect_rows(*builder.freeze(), stream, 15);
}

TEST(ContextBuilder, ReservingBetweenLayersIsRefused) {
  const Stream stream({.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 10});
  Outs outs(stream);
  builder.attend(step_into(stream, outs, 0, 0, 5));
  EXPECT_THROW(builder.reserve(20), InvalidArgument);
  EXPECT_THROW(builder.reserve(10, 5), InvalidArgument);
  builder.reserve(10);
}

TEST(ContextBuilder, SynchronizingBetweenLayersIsRefused) {
  const Stream stream({.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 20});
  builder.synchronize();
  Outs outs(stream);
  give(builder, stream, {5}, outs);
  builder.synchronize();
  builder.attend(step_into(stream, outs, 0, 5, 5));
  EXPECT_THROW(builder.synchronize(), InvalidArgument);
  builder.attend(step_into(stream, outs, 1, 5, 5));
  builder.synchronize();
  EXPECT_EQ(builder.freeze()->tokens(), 10);
}

TEST(ContextBuilder, TruncatedTokensLeaveNoTrace) {
  const Stream stream({.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16}, 100);
  const Stream rejected(stream.shape, 100, 77);
  Outs want(stream);
  ContextBuilder plain(stream.shape, {.capacity = 100, .dtype = DType::f32});
  give(plain, stream, {30, 30, 1, 39}, want);
  Outs got(stream);
  ContextBuilder builder(stream.shape, {.capacity = 100, .dtype = DType::f32});
  give(builder, rejected, {60}, got);
  builder.truncate(0);
  give(builder, stream, {30}, got);
  give(builder, rejected, {50, 2}, got, 30);
  builder.truncate(30);
  EXPECT_EQ(builder.tokens(1), 30);
  give(builder, stream, {30, 1, 39}, got, 30);
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.lse, want.lse);
  expect_rows(*builder.freeze(), stream, 100);
}

TEST(ContextBuilder, TruncatingToMoreThanALayerHasIsRefused) {
  const Stream stream({.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 20});
  Outs outs(stream);
  give(builder, stream, {10}, outs);
  EXPECT_THROW(builder.truncate(11), InvalidArgument);
  EXPECT_THROW(builder.truncate(-1), InvalidArgument);
  builder.attend(step_into(stream, outs, 0, 10, 5));
  EXPECT_THROW(builder.truncate(11), InvalidArgument);
  EXPECT_EQ(builder.tokens(0), 15);
}

TEST(ContextBuilder, TruncatingBetweenLayersTakesBackTheStepThatSomeHaveTaken) {
  const Stream stream({.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  Outs outs(stream), clean(stream);
  ContextBuilder builder(stream.shape, {.capacity = 20});
  give(builder, stream, {10}, outs);
  builder.attend(step_into(stream, outs, 0, 10, 5));
  builder.truncate(10);
  EXPECT_EQ(builder.tokens(0), 10);
  give(builder, stream, {7, 3}, outs, 10);
  ContextBuilder untouched(stream.shape, {.capacity = 20});
  give(untouched, stream, {10, 7, 3}, clean);
  EXPECT_EQ(outs.out, clean.out);
  EXPECT_EQ(builder.freeze()->tokens(), 20);
}

TEST(ContextBuilder, OutMayBeQItselfWhicheverTokensHaveRowsHere) {
  const Stream stream({.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 16}, 600);
  struct Part {
    std::int64_t first, count;
  };
  for (const Part& part : {Part{0, 250}, Part{0, 100}, Part{100, 150}, Part{90, 20}, Part{0, 0}}) {
    ContextBuilder apart(stream.shape, {.capacity = 600});
    ContextBuilder in_place(stream.shape, {.capacity = 600});
    for (const std::int64_t begin : {0, 250}) {
      Outs want(stream), got(stream);
      AttentionStep step = step_into(stream, want, 0, begin, 250);
      step.kv_first = part.first;
      step.kv_tokens = part.count;
      step.k += part.first * stream.kv_width();
      step.v += part.first * stream.kv_width();
      apart.attend(step);
      got.out = stream.q;
      step.lse = &got.lse[0][begin * stream.shape.q_heads];
      step.q = step.out = &got.out[0][begin * stream.q_width()];
      in_place.attend(step);
      const auto at = begin * stream.q_width();
      for (std::int64_t i = at; i < at + 250 * stream.q_width(); ++i)
        ASSERT_EQ(got.out[0][i], want.out[0][i]) << part.first << " " << part.count << " " << i;
      EXPECT_EQ(got.lse, want.lse);
    }
  }
}

TEST(ContextBuilder, QueriesThatAreNotFiniteAreRefusedWithTheirPlaceAndNothingIsKept) {
  Stream stream({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 8}, 20);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    ContextBuilder builder(stream.shape, {.capacity = 20});
    Outs outs(stream);
    give(builder, stream, {10}, outs);
    builder.attend(step_into(stream, outs, 0, 10, 5));
    float& value = stream.q[1][12 * stream.q_width() + 3 * 8 + 5];
    const float kept = std::exchange(value, bad);
    const std::string message =
        message_of([&] { builder.attend(step_into(stream, outs, 1, 10, 5)); });
    EXPECT_NE(message.find("q of layer 1, query head 3, position 12 is not finite"),
              std::string::npos)
        << message;
    EXPECT_EQ(builder.tokens(1), 10);
    value = kept;
    builder.attend(step_into(stream, outs, 1, 10, 5));
    EXPECT_EQ(builder.tokens(1), 15);
  }
}

TEST(ContextBuilder, MoreThanTheCapacityIsRefusedNamingReserve) {
  const Stream stream({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 10});
  Outs outs(stream);
  give(builder, stream, {6}, outs);
  const auto view = TensorView::tokens_first(stream.k[0].data(), DType::f32, 5, 1, 8);
  for (const std::string& message : {message_of([&] { give(builder, stream, {5}, outs, 6); }),
                                     message_of([&] { builder.append(0, view, view); })}) {
    EXPECT_NE(message.find("holds 6 tokens and gets 5 more"), std::string::npos) << message;
    EXPECT_NE(message.find("room for 10"), std::string::npos) << message;
    EXPECT_NE(message.find("reserve()"), std::string::npos) << message;
  }
  EXPECT_EQ(builder.tokens(0), 6);
  give(builder, stream, {4}, outs, 6);
}

TEST(ContextBuilder, LayersOutOfTurnAreRefused) {
  const Stream stream({.layers = 3, .q_heads = 2, .kv_heads = 1, .head_dim = 8}, 40);
  ContextBuilder builder(stream.shape, {.capacity = 40, .dtype = DType::f32});
  Outs outs(stream);
  const auto attend = [&](std::int64_t layer, std::int64_t count) {
    return [&, layer, count] { builder.attend(step_into(stream, outs, layer, 0, count)); };
  };
  EXPECT_THROW(attend(1, 5)(), InvalidArgument) << "layer 1 before layer 0";
  attend(0, 5)();
  EXPECT_THROW(attend(0, 5)(), InvalidArgument) << "layer 0 twice";
  EXPECT_THROW(attend(2, 5)(), InvalidArgument) << "layer 1 was left out";
  EXPECT_THROW(attend(1, 4)(), InvalidArgument) << "fewer tokens than layer 0";
  EXPECT_THROW(builder.freeze(), InvalidArgument) << "between layers";
  AttentionStep part = step_into(stream, outs, 1, 0, 5);
  part.kv_first = 2;
  EXPECT_THROW(builder.attend(part), InvalidArgument) << "K and V of fewer tokens than layer 0";
  attend(1, 5)();
  attend(2, 5)();
  EXPECT_EQ(builder.tokens(2), 5);
  expect_rows(*builder.freeze(), stream, 5);
}

TEST(ContextBuilder, RefusedStepLeavesTheLayerAsItWas) {
  const Stream stream({.layers = 2, .q_heads = 2, .kv_heads = 1, .head_dim = 8}, 30);
  ContextBuilder builder(stream.shape, {.capacity = 30, .dtype = DType::f32});
  Outs outs(stream);
  give(builder, stream, {10}, outs);
  std::vector<float> bad = stream.k[1];
  bad[3 * 8 + 1] = std::numeric_limits<float>::infinity();
  builder.attend(step_into(stream, outs, 0, 10, 20));
  AttentionStep step = step_into(stream, outs, 1, 10, 20);
  step.v = bad.data();
  const std::string message = message_of([&] { builder.attend(step); });
  EXPECT_NE(message.find("V of layer 1, KV head 0, position 13"), std::string::npos) << message;
  EXPECT_EQ(builder.tokens(1), 10);
  builder.attend(step_into(stream, outs, 1, 10, 20));
  expect_rows(*builder.freeze(), stream, 30);
}

TEST(ContextBuilder, StepsThatMakeNoSenseAreRefused) {
  const Stream stream({.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 8}, 30);
  ContextBuilder builder(stream.shape, {.capacity = 30});
  Outs outs(stream);
  const auto refused = [&](const char* what, const std::function<void(AttentionStep&)>& spoil) {
    AttentionStep step = step_into(stream, outs, 0, 0, 10);
    spoil(step);
    EXPECT_THROW(builder.attend(step), InvalidArgument) << what;
  };
  refused("no q", [](AttentionStep& s) { s.q = nullptr; });
  refused("no k", [](AttentionStep& s) { s.k = nullptr; });
  refused("no v", [](AttentionStep& s) { s.v = nullptr; });
  refused("no out", [](AttentionStep& s) { s.out = nullptr; });
  refused("no tokens", [](AttentionStep& s) { s.tokens = 0; });
  refused("layer below", [](AttentionStep& s) { s.layer = -1; });
  refused("layer above", [](AttentionStep& s) { s.layer = 1; });
  refused("kv_first below", [](AttentionStep& s) { s.kv_first = -1; });
  refused("kv_first beyond", [](AttentionStep& s) { s.kv_first = 11; });
  refused("kv_tokens beyond", [](AttentionStep& s) { s.kv_tokens = 11; });
  refused("kv_tokens beyond kv_first", [](AttentionStep& s) {
    s.kv_first = 4;
    s.kv_tokens = 7;
  });
  refused("kv_tokens below", [](AttentionStep& s) { s.kv_tokens = -2; });
  refused("kv_first that overflows", [](AttentionStep& s) {
    s.kv_first = std::numeric_limits<std::int64_t>::max();
    s.kv_tokens = std::numeric_limits<std::int64_t>::max();
  });
  EXPECT_EQ(builder.tokens(0), 0);
  EXPECT_THROW(ContextBuilder(stream.shape, {.attention = {.mode = Prefill::window, .window = 0}}),
               InvalidArgument);
  AttentionShape capped = stream.shape;
  for (const float cap :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    capped.softcap = cap;
    EXPECT_THROW(ContextBuilder(capped, {.capacity = 1}), InvalidArgument) << cap;
  }
}

TEST(ContextBuilder, PartsOfAStepAreRefusedWhereWindowsAreAttended) {
  AttentionShape sliding{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 8};
  const Stream stream(sliding, 30);
  sliding.sliding_window = {5};
  Outs outs(stream);
  AttentionStep part = step_into(stream, outs, 0, 0, 10);
  part.kv_tokens = 4;
  ContextBuilder by_layer(sliding, {.capacity = 30});
  EXPECT_THROW(by_layer.attend(part), InvalidArgument);
  ContextBuilder by_prefill(stream.shape, {.capacity = 30, .attention = windowed});
  EXPECT_THROW(by_prefill.attend(part), InvalidArgument);
  by_prefill.attend(step_into(stream, outs, 0, 0, 10));
}

TEST(ContextBuilder, RowsAppendedBetweenStepsAreSeen) {
  const Stream stream({.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16}, 100);
  Outs want(stream);
  ContextBuilder steps(stream.shape, {.capacity = 100, .dtype = DType::f32});
  give(steps, stream, {30, 40, 30}, want);
  Outs got(stream);
  ContextBuilder mixed(stream.shape, {.capacity = 100, .dtype = DType::f32});
  give(mixed, stream, {30}, got);
  for (std::int64_t l = 0; l < 2; ++l) {
    const auto view = [&](const std::vector<float>& x) {
      return TensorView::tokens_first(&x[30 * stream.kv_width()], DType::f32, 40, 2, 16);
    };
    mixed.append(l, view(stream.k[l]), view(stream.v[l]));
    if (l == 0) {
      EXPECT_THROW(give(mixed, stream, {30}, got, 70), InvalidArgument);
    }
  }
  give(mixed, stream, {30}, got, 70);
  for (std::int64_t l = 0; l < 2; ++l) {
    const std::int64_t from = 70 * stream.q_width();
    EXPECT_TRUE(
        std::equal(got.out[l].begin() + from, got.out[l].end(), want.out[l].begin() + from));
  }
  expect_rows(*mixed.freeze(), stream, 100);
}

TEST(ContextBuilder, AppendingBetweenLayersOfAStepIsRefused) {
  const Stream stream({.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 20});
  Outs outs(stream);
  builder.attend(step_into(stream, outs, 0, 0, 5));
  const auto view = TensorView::tokens_first(stream.k[1].data(), DType::f32, 5, 1, 8);
  EXPECT_THROW(builder.append(1, view, view), InvalidArgument);
}

TEST(ContextBuilder, FrozenBuilderRefusesSteps) {
  const Stream stream({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8}, 20);
  ContextBuilder builder(stream.shape, {.capacity = 20});
  Outs outs(stream);
  give(builder, stream, {5}, outs);
  builder.freeze();
  EXPECT_THROW(give(builder, stream, {5}, outs, 5), InvalidArgument);
  EXPECT_THROW(builder.reserve(30), InvalidArgument);
  EXPECT_THROW(builder.synchronize(), InvalidArgument);
  EXPECT_EQ(builder.shape().head_dim, 8);
  EXPECT_FALSE(builder.device().is_cuda());
}

}  // namespace
}  // namespace topkv
