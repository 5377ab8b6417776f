// The kinds of a session's step beside the plain one: log-sum-exp out, soft-capped scores, steps
// that only read; and taking tokens back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::expect_step;
using test::Stream;
using test::tolerance;

const AttentionShape step_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};

AttentionShape capped(float softcap) {
  AttentionShape shape = step_shape;
  shape.softcap = softcap;
  return shape;
}

struct Outs {
  Outs(const Stream& stream, std::int64_t tokens)
      : out(static_cast<std::size_t>(tokens * stream.q_width()), -7.0F),
        lse(static_cast<std::size_t>(tokens * stream.shape.q_heads), -7.0F) {}
  std::vector<float> out, lse;
};

/// A step that only reads, of tokens [begin, begin + count) of the stream.
AttentionStep reading(const Stream& stream, std::int64_t layer, std::int64_t begin,
                      std::int64_t count, Outs& outs) {
  AttentionStep step = stream.step(layer, begin, count, outs.out.data(), outs.lse.data());
  step.k = nullptr;
  step.v = nullptr;
  step.kv_tokens = 0;
  return step;
}

struct StepCase {
  const char* name;
  float softcap;
  std::int64_t context, k, window, sinks, dense_layers;
  SelectBy select_by = SelectBy::query_head;
};

void PrintTo(const StepCase& c, std::ostream* out) { *out << c.name; }

class SessionPartials : public testing::TestWithParam<StepCase> {
 protected:
  static RetrievalOptions options() {
    const StepCase& c = GetParam();
    return {.k = TopK::same(c.k),
            .select_by = c.select_by,
            .dense_layers = c.dense_layers,
            .window = c.window,
            .sinks = c.sinks};
  }
};

TEST_P(SessionPartials, OutAndLogSumExpEqualFloat64) {
  const StepCase& c = GetParam();
  const std::int64_t total = c.context + 50;
  const Stream stream(capped(c.softcap), total);
  const auto context = stream.prefill(c.context);
  for (const std::int64_t count : {1, 25}) {
    Session session(context, options());
    for (std::int64_t p = c.context; p < total; p += count) {
      for (std::int64_t l = 0; l < 2; ++l) {
        Outs outs(stream, count);
        session.attend(stream.step(l, p, count, outs.out.data(), outs.lse.data()));
        for (std::int64_t t = 0; t < count; t += 8) {
          expect_step(stream, l, p + t, options(), &outs.out[t * stream.q_width()],
                      &outs.lse[t * 6]);
        }
      }
    }
  }
}

TEST_P(SessionPartials, ReadingStepsEqualFloat64AndChangeNothing) {
  const StepCase& c = GetParam();
  const std::int64_t total = c.context + 50;
  const Stream stream(capped(c.softcap), total);
  const auto context = stream.prefill(c.context);
  Session clean(context, options());
  Session session(context, options());
  for (std::int64_t p = c.context; p < total; p += 10) {
    for (std::int64_t l = 0; l < 2; ++l) {
      for (const std::int64_t count : {1, 10}) {
        Outs outs(stream, count);
        session.attend(reading(stream, l, p, count, outs));
        for (std::int64_t t = 0; t < count; ++t) {
          expect_step(stream, l, p + t, options(), &outs.out[t * stream.q_width()],
                      &outs.lse[t * 6], p);
        }
      }
    }
    EXPECT_EQ(session.tokens(), p);
    EXPECT_EQ(stream.feed(session, p + 10, 3), stream.feed(clean, p + 10, 3));
  }
}

INSTANTIATE_TEST_SUITE_P(Options, SessionPartials,
                         testing::Values(StepCase{"retrieving", 0, 200, 8, 20, 4, 0},
                                         StepCase{"soft_capped", 1.5F, 200, 8, 20, 4, 0},
                                         StepCase{"soft_capped_by_group", 1.5F, 200, 8, 20, 4, 0,
                                                  SelectBy::group},
                                         StepCase{"by_group", 0, 200, 8, 20, 4, 0, SelectBy::group},
                                         StepCase{"saturated_cap", 0.05F, 200, 8, 20, 4, 0},
                                         StepCase{"first_layer_dense", 2, 200, 8, 20, 4, 1},
                                         StepCase{"all_retrieved", 2, 200, 100000, 20, 4, 0},
                                         StepCase{"no_context", 2, 0, 3, 10, 2, 0}),
                         [](const auto& info) { return info.param.name; });

TEST(SessionStep, SlidingLayersSeeTheirWindowOfCappedScores) {
  AttentionShape shape = capped(1.0F);
  shape.sliding_window = {12, 0};
  const Stream stream(shape, 330);
  Session session(stream.prefill(300), {.k = TopK::same(8), .window = 20});
  const auto outs = stream.feed(session, 330, 5);
  for (const std::int64_t t : {0, 5, 29}) {
    const std::int64_t p = 300 + t;
    for (std::int64_t h = 0; h < 6; ++h) {
      const auto want = reference::attend(
          stream.rows(0, h / 3, p + 1), &stream.q[0][p * stream.q_width() + h * 16],
          shape.softmax_scale(), [&](std::int64_t x) { return x > p - 12; }, 1.0);
      for (std::int64_t j = 0; j < 16; ++j)
        ASSERT_NEAR(outs[0][t * stream.q_width() + h * 16 + j], want.out[j], tolerance);
    }
  }
}

TEST(SessionStep, AllRetrievedEqualsDenseWithCappedScores) {
  const Stream stream(capped(0.8F), 420);
  const auto context = stream.prefill(400)->with_index("hnsw:M=16,efc=100,ef=800");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 420, 1);
  for (const char* spec : {"exact", "hnsw:M=16,efc=100,ef=800"}) {
    Session all(context, {.index = spec, .k = TopK::same(100000), .window = 16, .sinks = 2});
    const auto got = stream.feed(all, 420, 1);
    for (std::size_t l = 0; l < want.size(); ++l) {
      for (std::size_t i = 0; i < want[l].size(); ++i)
        ASSERT_NEAR(got[l][i], want[l][i], tolerance) << spec;
    }
  }
}

TEST(SessionStep, ReadingManyTokensSeesEveryRowWhereverTheStepIsCut) {
  const Stream stream(step_shape, 1000);
  const RetrievalOptions options{.k = TopK::same(100000), .window = 50, .sinks = 4};
  Session session(stream.prefill(300), options);
  stream.feed(session, 330, 30);
  for (std::int64_t l = 0; l < 2; ++l) {
    Outs outs(stream, 600);
    session.attend(reading(stream, l, 330, 600, outs));
    for (const std::int64_t t : {0, 100, 255, 256, 400, 599}) {
      RetrievalOptions dense = options;
      dense.dense_layers = 2;
      expect_step(stream, l, 330 + t, dense, &outs.out[t * stream.q_width()], &outs.lse[t * 6],
                  330);
    }
  }
  EXPECT_EQ(session.own_tokens(), 30);
}

TEST(SessionStep, ReadingWhereThereAreNoRowsGivesTheEmptyPartial) {
  const Stream stream(step_shape, 10);
  Session session(stream.prefill(0), {.window = 4});
  Outs outs(stream, 10);
  session.attend(reading(stream, 1, 0, 10, outs));
  for (const float x : outs.out) EXPECT_EQ(x, 0.0F);
  for (const float x : outs.lse) EXPECT_EQ(x, empty_lse);
}

TEST(SessionStep, KAndVOfSomeTokensAreRefused) {
  const Stream stream(step_shape, 230);
  Session session(stream.prefill(200), {.window = 16});
  Outs outs(stream, 10);
  AttentionStep step = stream.step(0, 200, 10, outs.out.data(), outs.lse.data());
  step.kv_tokens = 4;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  step.kv_tokens = -1;
  step.kv_first = 3;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  step.kv_first = 11;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  step.kv_first = 0;
  step.kv_tokens = 11;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  step.kv_tokens = -1;
  step.k = nullptr;
  EXPECT_THROW(session.attend(step), InvalidArgument) << "no k though all are given";
  step.kv_tokens = 0;
  step.q = nullptr;
  EXPECT_THROW(session.attend(step), InvalidArgument) << "reading without q";
  EXPECT_EQ(session.own_tokens(), 0);
}

TEST(SessionStep, ReadingRefusesQueriesThatAreNotFinite) {
  const Stream stream(step_shape, 230);
  Session session(stream.prefill(200), {.window = 16});
  std::vector<float> bad(stream.q[0].begin(), stream.q[0].begin() + stream.q_width());
  bad[3] = std::numeric_limits<float>::quiet_NaN();
  Outs outs(stream, 1);
  AttentionStep step = reading(stream, 0, 200, 1, outs);
  step.q = bad.data();
  EXPECT_THROW(session.attend(step), InvalidArgument);
  EXPECT_EQ(session.stats().steps, 0);
}

TEST(SessionStep, TruncatedSessionGoesOnAsIfItHadNeverHadTheTokens) {
  const Stream stream(step_shape, 260);
  const Stream rejected(step_shape, 260, 77);
  const auto context = stream.prefill(200);
  for (const std::int64_t kept : {0, 3, 30}) {  // 30: beyond the window
    const RetrievalOptions options{.k = TopK::same(8), .window = 16};
    Session plain(context, options);
    stream.feed(plain, 200 + kept, 1);
    Session session(context, options);
    stream.feed(session, 200 + kept, 1);
    rejected.feed(session, 200 + kept + 25, 5);
    session.truncate(kept);
    EXPECT_EQ(session.own_tokens(), kept);
    EXPECT_EQ(session.tokens(), 200 + kept);
    for (const std::int64_t end : {210L, 245L, 260L}) {
      if (end <= 200 + kept) continue;
      EXPECT_EQ(stream.feed(session, end, 4), stream.feed(plain, end, 4)) << kept << " kept";
    }
  }
}

TEST(SessionStep, TruncatingATurnThatIsNotOverEndsIt) {
  const Stream stream(step_shape, 230);
  Session session(stream.prefill(200), {.window = 16});
  stream.feed(session, 205, 1);
  Outs outs(stream, 3);
  session.attend(stream.step(0, 205, 3, outs.out.data()));  // layer 1 never gets them
  session.truncate(5);
  Session plain(stream.prefill(200), {.window = 16});
  stream.feed(plain, 205, 1);
  EXPECT_EQ(stream.feed(session, 230, 2), stream.feed(plain, 230, 2));
}

TEST(SessionStep, TruncatingToMoreThanThereIsIsRefused) {
  const Stream stream(step_shape, 210);
  Session session(stream.prefill(200), {.window = 16});
  stream.feed(session, 205, 1);
  EXPECT_THROW(session.truncate(6), InvalidArgument);
  EXPECT_THROW(session.truncate(-1), InvalidArgument);
  session.truncate(5);
  EXPECT_EQ(session.own_tokens(), 5);
}

/// What is written in place of q, of a context and sessions of every kind of layer.
TEST(SessionStep, OutMayBeQItself) {
  AttentionShape shape = step_shape;
  shape.layers = 3;
  shape.sliding_window = {0, 12, 0};
  const Stream stream(shape, 700);
  const auto context = stream.prefill(300);
  const RetrievalOptions options{.k = TopK::same(8), .dense_layers = 1, .window = 20};
  for (const std::int64_t count : {1, 7, 400}) {  // the last is more than a piece
    for (const bool reads : {false, true}) {
      Session apart(context, options);
      Session in_place(context, options);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        Outs want(stream, count);
        AttentionStep step = stream.step(l, 300, count, want.out.data(), want.lse.data());
        if (reads) step = reading(stream, l, 300, count, want);
        apart.attend(step);
        Outs got(stream, count);
        std::copy_n(step.q, got.out.size(), got.out.begin());
        step.q = step.out = got.out.data();
        step.lse = got.lse.data();
        in_place.attend(step);
        EXPECT_EQ(got.out, want.out) << "layer " << l << ", " << count << " tokens";
        EXPECT_EQ(got.lse, want.lse) << "layer " << l << ", " << count << " tokens";
      }
    }
  }
}

TEST(SessionStep, WhatIsWrittenMayNotOverlapWhatIsRead) {
  const Stream stream(step_shape, 120);
  const auto context = stream.prefill(100);
  Session session(context);
  ContextBuilder builder(step_shape, {.capacity = 200, .dtype = DType::f32});
  const std::int64_t width = stream.q_width();
  std::vector<float> memory(static_cast<std::size_t>(40 * width), 0.5F);
  std::vector<float> apart(static_cast<std::size_t>(40 * width), 0.5F);
  float* at = memory.data();
  float* other = apart.data();
  const AttentionStep good{.layer = 0,
                           .tokens = 5,
                           .q = at,
                           .k = at + 20 * width,
                           .v = at + 30 * width,
                           .out = other,
                           .lse = other + 20 * width};
  const auto with = [&](auto change) {
    AttentionStep step = good;
    change(step);
    return step;
  };
  struct Overlap {
    const char* message;
    AttentionStep step;
  };
  for (const auto& [message, step] : {
           Overlap{"out overlaps q", with([&](auto& s) { s.out = at + width; })},
           Overlap{"out overlaps q", with([&](auto& s) { s.out = at + 5 * width - 1; })},
           Overlap{"out overlaps k", with([&](auto& s) { s.out = at + 20 * width; })},
           Overlap{"out overlaps v", with([&](auto& s) { s.out = at + 29 * width; })},
           Overlap{"lse overlaps q", with([&](auto& s) { s.lse = at; })},
           Overlap{"lse overlaps k", with([&](auto& s) { s.lse = at + 20 * width; })},
           Overlap{"lse overlaps out", with([&](auto& s) { s.lse = other + 5 * width - 1; })},
       }) {
    for (const auto& attend : {std::function<void()>([&] { session.attend(step); }),
                               std::function<void()>([&] { builder.attend(step); })}) {
      try {
        attend();
        ADD_FAILURE() << "not refused: " << message;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_EQ(session.own_tokens(), 0);
  EXPECT_EQ(builder.tokens(0), 0);
  session.attend(good);
  builder.attend(good);
  EXPECT_EQ(session.own_tokens(), 5);
}

TEST(SessionStep, OptionsAsLargeAsNumbersGoMeanAllThereIs) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  AttentionShape shape = step_shape;
  shape.sliding_window = {0, most};
  const Stream stream(shape, 330);
  const auto context = stream.prefill(300);
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 330, 5);
  for (const RetrievalOptions& options :
       {RetrievalOptions{.window = most}, RetrievalOptions{.window = most, .sinks = most},
        RetrievalOptions{.window = 1, .sinks = most},
        RetrievalOptions{.k = TopK::same(most), .window = 1, .sinks = 0},
        RetrievalOptions{.dense_layers = most, .window = most}}) {
    Session session(context, options);
    const auto got = stream.feed(session, 330, 5);
    for (std::size_t l = 0; l < want.size(); ++l) {
      for (std::size_t i = 0; i < want[l].size(); ++i)
        ASSERT_NEAR(got[l][i], want[l][i], tolerance);
    }
  }
}

TEST(SessionStep, MoreTokensThanNumbersCountAreRefused) {
  const Stream stream(step_shape, 120);
  const auto context = stream.prefill(100);
  Session session(context);
  ContextBuilder builder(step_shape, {.capacity = 200});
  std::vector<float> q(100), out(100);
  for (const std::int64_t tokens :
       {std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 60, std::int64_t{-3}}) {
    const AttentionStep step{
        .tokens = tokens, .q = q.data(), .k = q.data(), .v = q.data(), .out = out.data()};
    EXPECT_THROW(session.attend(step), InvalidArgument);
    EXPECT_THROW(builder.attend(step), InvalidArgument);
    AttentionStep reads = step;
    reads.kv_tokens = 0;
    EXPECT_THROW(session.attend(reads), InvalidArgument);
    EXPECT_THROW(builder.attend(reads), InvalidArgument);
  }
}

}  // namespace
}  // namespace topkv
