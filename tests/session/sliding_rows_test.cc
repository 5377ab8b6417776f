// Layers with a sliding window keep the rows of their last tokens alone: a builder while it reads,
// a context, and its file. What is attended is float64's, and a builder and sessions go back as far
// as they say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

constexpr std::int64_t sliding_tokens = 500;  // of the context
constexpr std::int64_t sliding_total = 560;

/// Windows of 9 and 16 tokens, one of them over the rows of an earlier layer.
AttentionShape sliding_shape() {
  return {.layers = 4,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .sliding_window = {16, 0, 9, 16},
          .row_layer = {0, 1, 2, 0}};
}

RetrievalOptions sliding_options() {
  return {.k = TopK::same(8), .window = 16, .capacity = sliding_total - sliding_tokens};
}

/// Gives a builder tokens [its own, until) of every layer, `step` at a time.
void read(ContextBuilder& builder, const Feed& feed, std::int64_t until, std::int64_t step) {
  for (std::int64_t t = builder.tokens(0); t < until; t += step) {
    for (std::int64_t layer = 0; layer < builder.shape().layers; ++layer)
      builder.attend(feed.step(layer, t, std::min(step, until - t)));
  }
}

/// The largest error of what a prefill gave for tokens [first, end).
double worst_of_prefill(const Place& place, const TokenStream& stream, const Feed& feed,
                        std::int64_t first, std::int64_t end) {
  const auto outs = feed.outs();
  double worst = 0;
  for (std::int64_t layer = 0; layer < stream.shape.layers; ++layer) {
    const std::int64_t window = stream.shape.window_of(layer);
    for (std::int64_t p = first; p < end; ++p) {
      for (std::int64_t head = 0; head < stream.shape.q_heads; ++head) {
        const float* out =
            &outs[static_cast<std::size_t>(layer)]
                 [static_cast<std::size_t>(p * stream.q_width() + head * stream.shape.head_dim)];
        worst = std::max(
            worst, stream.error(layer, p, head, place.is_cuda(), out, nullptr,
                                [&](std::int64_t x) { return window == 0 || x > p - window; }));
      }
    }
  }
  return worst;
}

/// The largest error of a session's steps for tokens [context, end).
double worst_of_session(const Place& place, const TokenStream& stream, Session& session,
                        std::int64_t end, std::int64_t step) {
  const std::int64_t first = session.tokens();
  Feed feed(place, stream, first, sliding_total);
  feed.run(session, end, step);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = first; p < end; ++p) positions.push_back(p);
  return feed.worst(sliding_options(), positions);
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "(not refused)";
}

void expect_first_rows(const Context& context, std::int64_t tokens) {
  EXPECT_EQ(context.tokens(), tokens);
  EXPECT_EQ(context.first_row(0), tokens - 16);
  EXPECT_EQ(context.first_row(1), 0);
  EXPECT_EQ(context.first_row(2), tokens - 9);
  EXPECT_EQ(context.first_row(3), tokens - 16);  // of layer 0
  EXPECT_EQ(context.rows(1, 0).count(), tokens);
  EXPECT_EQ(context.rows(2, 1).count(), 9);
  const std::int64_t rows = 16 + tokens + 9;
  EXPECT_EQ(context.memory().rows_bytes, rows * 2 * context.dtype().row_bytes(64));
  EXPECT_EQ(context.memory().rows_bytes, context.shape().context_bytes(context.dtype(), tokens));
}

class SlidingRows : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }
};

TEST_P(SlidingRows, OfAPrefillAndSessionsAreThoseThatAreAttended) {
  const Place place(GetParam());
  const TokenStream stream(sliding_shape(), sliding_total);
  for (const std::int64_t step : {7, 40, 300}) {  // less and more than the windows keep
    const Feed feed(place, stream, 0, sliding_total);
    ContextBuilder builder(stream.shape, {.capacity = sliding_tokens}, place.device());
    read(builder, feed, sliding_tokens, step);
    EXPECT_LE(worst_of_prefill(place, stream, feed, 0, sliding_tokens), 1) << step;
    const auto context = builder.freeze();
    expect_first_rows(*context, sliding_tokens);
    Session session(context, sliding_options(), place.device());
    EXPECT_LE(worst_of_session(place, stream, session, sliding_tokens + 5, 1), 1);
    Session fork = session.fork();
    EXPECT_LE(worst_of_session(place, stream, session, sliding_total, 11), 1);
    EXPECT_EQ(session.reachable(3), 3);  // a session keeps all of its own rows
    session.truncate(3);
    EXPECT_LE(worst_of_session(place, stream, session, sliding_total, 30), 1);
    EXPECT_LE(worst_of_session(place, stream, fork, sliding_total, 55), 1);
    session.truncate(0);
    EXPECT_LE(worst_of_session(place, stream, session, sliding_tokens + 9, 3), 1);
  }
}

TEST_P(SlidingRows, OfABuilderGoBackAsFarAsItSays) {
  const Place place(GetParam());
  const TokenStream stream(sliding_shape(), sliding_total);
  const Feed feed(place, stream, 0, sliding_total);
  ContextBuilder builder(stream.shape, {.capacity = sliding_tokens}, place.device());
  read(builder, feed, 401, 20);
  // A window can be taken back, whatever was moved when; so can the last step.
  EXPECT_EQ(builder.reachable(401), 401);
  EXPECT_EQ(builder.reachable(392), 392);
  EXPECT_EQ(builder.reachable(381), 381);
  EXPECT_EQ(builder.reachable(100), 0);
  const std::string told = refused([&] { builder.truncate(100); });
  EXPECT_NE(told.find("truncate to 0"), told.npos) << told;
  EXPECT_EQ(builder.tokens(3), 401);
  builder.truncate(392);
  read(builder, feed, 450, 29);
  EXPECT_LE(worst_of_prefill(place, stream, feed, 0, 450), 1);
  builder.truncate(0);
  read(builder, feed, sliding_tokens, 60);
  EXPECT_LE(worst_of_prefill(place, stream, feed, 0, sliding_tokens), 1);
  expect_first_rows(*builder.freeze(), sliding_tokens);
}

TEST_P(SlidingRows, AreReadOnFromAContext) {
  const Place place(GetParam());
  const TokenStream stream(sliding_shape(), sliding_total);
  const Feed feed(place, stream, 0, sliding_total);
  for (const KvDType dtype : {KvDType{}, KvDType{DType::q8}}) {
    ContextBuilder first(stream.shape, {.capacity = 300, .dtype = dtype}, place.device());
    read(first, feed, 300, 50);
    const auto context = first.freeze();
    ContextBuilder builder(stream.shape, {.capacity = 400, .dtype = dtype}, place.device());
    builder.resume(*context);
    EXPECT_NE(refused([&] { builder.resume(*context); }).find("300 tokens"), std::string::npos);
    read(builder, feed, 400, 50);
    builder.reserve(sliding_tokens);
    read(builder, feed, sliding_tokens, 50);
    if (dtype.keys == DType::bf16) {
      EXPECT_LE(worst_of_prefill(place, stream, feed, 0, sliding_tokens), 1);
    }
    const auto whole = builder.freeze();
    expect_first_rows(*whole, sliding_tokens);
    ContextBuilder at_once(stream.shape, {.capacity = sliding_tokens, .dtype = dtype},
                           place.device());
    read(at_once, feed, sliding_tokens, 50);
    const auto wanted = at_once.freeze();
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      const RowsView a = whole->rows(layer, 1), b = wanted->rows(layer, 1);
      ASSERT_EQ(a.count(), b.count());
      EXPECT_TRUE(std::equal(a.key(0), a.key(a.count()), b.key(0))) << layer;
      EXPECT_TRUE(std::equal(a.value(0), a.value(a.count()), b.value(0))) << layer;
    }
  }
  ContextBuilder small(stream.shape, {.capacity = 299}, place.device());
  const auto context = stream.context(300);
  EXPECT_NE(refused([&] { small.resume(*context); }).find("room for 299"), std::string::npos);
  AttentionShape other = stream.shape;
  other.sliding_window[0] = other.sliding_window[3] = 15;
  ContextBuilder narrower(other, {.capacity = 300}, place.device());
  EXPECT_NE(refused([&] { narrower.resume(*context); }).find("a window of 16, not 15"),
            std::string::npos);
  Session session(context, sliding_options());
  EXPECT_NE(refused([&] { small.resume(*session.own_rows()); }).find("came after 300 tokens"),
            std::string::npos);
  small.resume(*stream.context(20));
  EXPECT_EQ(small.tokens(0), 20);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SlidingRows, testing::ValuesIn(::test::devices));

TEST(SlidingRows, StayWhenABuilderMovesToMoreRoom) {
  const Place place("cpu");
  const TokenStream stream(sliding_shape(), sliding_total);
  const Feed feed(place, stream, 0, sliding_total);
  ContextBuilder builder(stream.shape, {.capacity = 180});
  read(builder, feed, 180, 90);
  builder.reserve(sliding_tokens);
  EXPECT_EQ(builder.reachable(90), 90);  // the last step can be taken back
  builder.truncate(90);
  read(builder, feed, sliding_tokens, 90);
  EXPECT_LE(worst_of_prefill(place, stream, feed, 0, sliding_tokens), 1);
}

TEST(SlidingRows, AppendedAtOnceAreTheLastOnesOrNone) {
  const TokenStream stream(sliding_shape(), sliding_total);
  ContextBuilder builder(stream.shape, {.capacity = sliding_tokens, .dtype = DType::f32});
  const auto append = [&](std::int64_t layer, std::vector<float> keys, std::int64_t from,
                          std::int64_t count) {
    const std::int64_t at = from * stream.kv_width();
    const auto l = static_cast<std::size_t>(layer);
    builder.append(layer, TensorView::tokens_first(&keys[at], DType::f32, count, 2, 64),
                   TensorView::tokens_first(&stream.v[l][at], DType::f32, count, 2, 64));
  };
  append(0, stream.k[0], 0, 20);
  std::vector<float> bad = stream.k[0];
  bad[30 * stream.kv_width()] = std::numeric_limits<float>::infinity();  // not among the last
  const std::string told = refused([&] { append(0, bad, 20, 400); });
  EXPECT_NE(told.find("position 30 holds inf at element 0"), told.npos) << told;
  EXPECT_EQ(builder.tokens(0), 20);
  EXPECT_EQ(builder.reachable(4), 4);  // nothing went for them
  append(0, stream.k[0], 20, 400);
  append(0, stream.k[0], 420, 1);
  append(0, stream.k[0], 421, 79);
  for (const std::int64_t layer : {1, 2})
    append(layer, stream.k[static_cast<std::size_t>(layer)], 0, sliding_tokens);
  const auto context = builder.freeze();
  expect_first_rows(*context, sliding_tokens);
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    for (std::int64_t p = context->first_row(layer); p < sliding_tokens; ++p) {
      float key = 0;
      std::memcpy(&key, context->rows(layer, 1).key(p - context->first_row(layer)), 4);
      EXPECT_EQ(key, stream.k[static_cast<std::size_t>(layer)][p * stream.kv_width() + 64]);
    }
  }
}

TEST(SlidingRows, AreSavedAndLoaded) {
  const Place place("cpu");
  const TokenStream stream(sliding_shape(), sliding_total);
  const TempDirectory folder;
  const auto path = folder.path() / "text.tkv";
  for (const KvDType dtype : {KvDType{}, KvDType{DType::q8, DType::q4}}) {
    const auto context = stream.context(sliding_tokens, dtype);
    save_context(*context, path);
    verify_context(path);
    const ContextFileInfo info = context_file_info(path);
    EXPECT_EQ(info.version, 2);
    EXPECT_EQ(info.rows_bytes, context->memory().rows_bytes);
    Session session(context, sliding_options());
    Feed wanted(place, stream, sliding_tokens, sliding_total);
    wanted.run(session, 9);
    for (const bool mapped : {false, true}) {
      const auto loaded = load_context(path, {.mapped = mapped}).context;
      expect_first_rows(*loaded, sliding_tokens);
      Session other(loaded, sliding_options());
      Feed got(place, stream, sliding_tokens, sliding_total);
      got.run(other, 9);
      EXPECT_EQ(got.outs(), wanted.outs());
      // What a session of its own goes on from, without the rows before the window.
      Session resumed(stream.context(60, dtype), {.k = TopK::same(8), .capacity = sliding_total});
      if (in_blocks(dtype.keys)) continue;  // whose channels' scales are those of other tokens
      resumed.resume(*loaded);
      EXPECT_EQ(resumed.own_tokens(), sliding_tokens);
      EXPECT_EQ(resumed.reachable(sliding_tokens - 1), 0);
      const std::string told = refused([&] { resumed.truncate(sliding_tokens - 1); });
      EXPECT_NE(told.find("rows of its sliding window"), told.npos) << told;
      resumed.truncate(0);
      EXPECT_EQ(resumed.own_tokens(), 0);
    }
  }
  // A context that keeps all rows is a file as it always was.
  save_context(*stream.context(9), path);
  EXPECT_EQ(context_file_info(path).version, 1);
}

}  // namespace
}  // namespace topkv
