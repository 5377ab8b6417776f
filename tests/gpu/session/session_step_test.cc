// Steps of a session that only read, and tokens that are taken back, on a device and (what it is to
// agree with) on the host.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/session_feed.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

class SessionStep : public testing::TestWithParam<std::string> {
 protected:
  RetrievalOptions with(RetrievalOptions options) const {
    options.capacity = 1024;
    return options;
  }
  static AttentionShape shape(std::vector<std::int64_t> sliding = {}) {
    return {.layers = 2,
            .q_heads = 6,
            .kv_heads = 2,
            .head_dim = 64,
            .sliding_window = std::move(sliding)};
  }
  /// Gives the feed's tokens from t on without their K and V.
  static void read(Session& session, const Feed& feed, std::int64_t t, std::int64_t tokens) {
    for (std::int64_t l = 0; l < session.context().shape().layers; ++l) {
      AttentionStep step = feed.step(l, t, tokens);
      step.k = nullptr;
      step.v = nullptr;
      step.kv_tokens = 0;
      session.attend(step);
    }
  }
};

TEST_P(SessionStep, ThatOnlyReadsSeesTheRowsThereAreAndAddsNone) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  struct Case {
    std::int64_t context, window, sinks, dense_layers;
    std::vector<std::int64_t> sliding;
  };
  for (const Case& c : {Case{300, 16, 4, 0, {}}, Case{300, 16, 310, 1, {}}, Case{300, 1, 0, 0, {}},
                        Case{300, 16, 4, 0, {0, 12}}, Case{0, 16, 4, 0, {}}, Case{0, 1, 2, 1, {}},
                        Case{5, 1000, 4, 0, {}}}) {
    SCOPED_TRACE(testing::Message()
                 << "context " << c.context << ", window " << c.window << ", sinks " << c.sinks
                 << ", dense layers " << c.dense_layers);
    const TokenStream stream(shape(c.sliding), c.context + 100);
    const auto options = with(
        {.k = TopK::same(8), .dense_layers = c.dense_layers, .window = c.window, .sinks = c.sinks});
    Session session(stream.context(c.context), options, place.device());
    Feed feed(place, stream, c.context, stream.total);
    for (const std::int64_t own : {0, 1, 30}) {
      const std::int64_t end = c.context + own;
      feed.run(session, end, 4);
      for (const std::int64_t tokens : {1, 40}) {
        SCOPED_TRACE(testing::Message() << own << " own tokens, reading " << tokens);
        const Feed reader(place, stream, end, end + tokens);
        read(session, reader, end, tokens);
        EXPECT_LE(reader.worst(options, {end, end + tokens / 2, end + tokens - 1}, end), 1.0);
      }
      EXPECT_EQ(session.own_tokens(), own);
    }
    feed.run(session, 5);
    const std::int64_t n = c.context;
    EXPECT_LE(feed.worst(options, {n, n + 1, n + 29, n + 30, n + 55, n + 99}), 1.0);
  }
}

TEST_P(SessionStep, AfterTokensWereTakenBackIsAsIfTheyHadNeverBeen) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  constexpr std::int64_t context = 300;
  for (const std::int64_t sinks : {4, 315}) {  // the latter among those that are taken back
    for (const std::int64_t dense_layers : {0, 1}) {
      SCOPED_TRACE(testing::Message() << sinks << " sinks, dense layers " << dense_layers);
      const TokenStream stream(shape(), context + 80);
      const TokenStream rejected(shape(), context + 80, 70);
      const auto options =
          with({.k = TopK::same(8), .dense_layers = dense_layers, .window = 16, .sinks = sinks});
      Session session(stream.context(context), options, place.device());
      Feed feed(place, stream, context, stream.total);
      feed.run(session, context + 10, 1);
      Feed wrong(place, rejected, context + 10, context + 50);
      wrong.run(session, 8);
      session.truncate(10);
      EXPECT_EQ(session.own_tokens(), 10);
      feed.run(session, context + 13, 1);
      wrong.run(session, context + 15, 1);
      session.truncate(13);
      feed.run(session, 5);
      EXPECT_EQ(session.own_tokens(), 80);
      EXPECT_LE(feed.worst(options, {context + 9, context + 10, context + 12, context + 13,
                                     context + 20, context + 79}),
                1.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SessionStep, testing::ValuesIn(test::devices),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace topkv
