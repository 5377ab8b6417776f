// A session's own rows that have left the window and are laid out in codes: none is lost or counted
// twice, all of them found is dense attention in float64, and what is estimated is near to it.
#include "src/session/own_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/io/faults.h"
#include "tests/support/failing.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

const AttentionShape own_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};
constexpr std::int64_t own_context_tokens = 1500;
constexpr std::int64_t window = 16;

RetrievalOptions options_for(std::int64_t k, const char* index = "codes:k=16,v=8") {
  return {.index = index, .k = TopK::same(k), .window = window, .sinks = 3, .capacity = 20000};
}

/// Keys that vary along few directions, as codes are for, and values that go with them.
TokenStream coded_stream(std::int64_t tokens, const AttentionShape& shape = own_shape) {
  TokenStream stream(shape, tokens);
  for (std::size_t l = 0; l < stream.k.size(); ++l) {
    for (std::size_t i = 0; i < stream.k[l].size(); ++i)
      stream.k[l][i] *= 3 * std::pow(0.9F, static_cast<float>(i % 64));
    for (std::size_t i = 0; i < stream.v[l].size(); ++i) stream.v[l][i] += stream.k[l][i];
  }
  return stream;
}

/// While one lives, a hook of faults.
struct Hooked {
  explicit Hooked(void (*hook)(const char*)) { fault_hook = hook; }
  ~Hooked() { fault_hook = nullptr; }
  Hooked(const Hooked&) = delete;  // belongs to one scope
  Hooked& operator=(const Hooked&) = delete;
};

class OwnCodes : public testing::TestWithParam<std::string> {
 protected:
  OwnCodes() : on_host_(std::exchange(least_coded_on_host, least_coded_on_device)) {}
  ~OwnCodes() override { least_coded_on_host = on_host_; }

 private:
  std::int64_t on_host_;
};

TEST_P(OwnCodes, EveryRowCountsOnce) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  // Where all keys are alike, so are all weights; values are 1 for the first tokens and 0 for the
  // others, which a bit says.
  constexpr std::int64_t end = 6000;
  constexpr std::int64_t ones = 2500;
  TokenStream stream(own_shape, end);
  for (auto& k : stream.k) std::fill(k.begin(), k.end(), 0.0F);
  for (auto& v : stream.v) {
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<std::int64_t>(i) / stream.kv_width() < ones ? 1.0F : 0.0F;
  }
  const auto context = stream.context(own_context_tokens)->with_index("codes:k=16,v=8");
  // A row more or less is 1 / 6000; a device's weights are halves.
  const double rounding = place.is_cuda() ? 2e-3 : 5e-5;
  const auto expect_all = [&](Session& session, std::int64_t until, std::int64_t step) {
    const std::int64_t first = session.tokens();
    Feed feed(place, stream, first, until);
    std::vector<float> lse(static_cast<std::size_t>((until - first) * own_shape.q_heads));
    const Buffer lses = place.put(lse);
    for (std::int64_t t = first; t < until; t += step) {
      const std::int64_t tokens = std::min(step, until - t);
      for (std::int64_t l = 0; l < own_shape.layers; ++l) {
        AttentionStep given = feed.step(l, t, tokens);
        if (l == 1) given.lse = lses.floats() + (t - first) * own_shape.q_heads;
        session.attend(given);
      }
    }
    const auto outs = feed.outs();
    lse = place.get(lses.floats(), std::ssize(lse));
    for (std::int64_t t = first; t < until; ++t) {
      const double want = static_cast<double>(std::min(ones, t + 1)) / static_cast<double>(t + 1);
      for (std::int64_t x = 0; x < stream.q_width(); ++x) {
        ASSERT_NEAR(outs[1][static_cast<std::size_t>((t - first) * stream.q_width() + x)], want,
                    rounding)
            << "token " << t << " of " << first << " to " << until;
      }
      for (std::int64_t h = 0; h < own_shape.q_heads; ++h) {
        ASSERT_NEAR(lse[static_cast<std::size_t>((t - first) * own_shape.q_heads + h)],
                    std::log(static_cast<double>(t + 1)), rounding)
            << t;
      }
    }
  };
  for (const std::int64_t k : {1, 40}) {
    Session session(context, options_for(k), place.device());
    expect_all(session, 3500, 250);
    EXPECT_EQ(session.stats().coded_tokens, 0);
    expect_all(session, 4500, 250);
    EXPECT_EQ(session.stats().coded_tokens, 2048);
    expect_all(session, 4520, 1);
    EXPECT_GT(session.stats().coded_bytes, 0);
    expect_all(session, end - 20, 100);
    EXPECT_EQ(session.stats().coded_tokens, 4096);
    Session copy = session.fork();
    EXPECT_EQ(copy.stats().coded_tokens, 0) << "a copy has its own rows attended until it grows";
    EXPECT_EQ(copy.stats().coded_bytes, 0);
    expect_all(session, end, 1);
    expect_all(copy, end, 1);
    session.truncate(3000);
    EXPECT_EQ(session.stats().coded_tokens, 3000 - window + 1);
    expect_all(session, 4600, 7);
    session.truncate(0);
    EXPECT_EQ(session.stats().coded_tokens, 0);
    expect_all(session, 1600, 1);
  }
}

TEST_P(OwnCodes, AllKeysRetrievedEqualsDense) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(own_shape, 5000);
  const RetrievalOptions dense{.dense_layers = 2, .capacity = 20000};
  for (const std::int64_t tokens : {1, 1500}) {
    Session session(stream.context(tokens)->with_index("codes:k=16,v=8"), options_for(100000),
                    place.device());
    Feed feed(place, stream, tokens, 5000);
    feed.run(session, 4900, 256);
    EXPECT_EQ(session.stats().coded_tokens, tokens == 1 ? 4096 : 3072);
    feed.run(session, 4950, 1);
    feed.run(session, 5000, 50);
    EXPECT_LE(feed.worst(dense, {4899, 4900, 4949, 4950, 4999}), 1.0) << tokens;
  }
}

TEST_P(OwnCodes, AreNearToDenseAttentionAndSayHowNear) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream = coded_stream(5100);
  const auto context = stream.context(own_context_tokens)->with_index("codes:k=16,v=8");
  const auto outs = [&](Session& session, std::int64_t step) {
    Feed(place, stream, own_context_tokens, 5000).run(session, 250);
    Feed feed(place, stream, 5000, 5100);
    feed.run(session, step);
    return feed.outs();
  };
  Session dense(context, {.dense_layers = 2, .capacity = 20000}, place.device());
  const auto want = outs(dense, 100);
  RetrievalOptions options = options_for(32);
  Session session(context, options, place.device());
  const double near = distance(outs(session, 100), want);
  EXPECT_EQ(session.stats().coded_tokens, 3072);
  const auto alike = static_cast<double>(
      stream.context(3072)->with_index("codes:k=16,v=8")->index_memory("codes:k=16,v=8"));
  EXPECT_NEAR(static_cast<double>(session.stats().coded_bytes), alike, 0.05 * alike);
  Session one(context, options, place.device());
  EXPECT_NEAR(distance(outs(one, 1), want), near, 0.2 * near) << "ahead of its lists";
  Session frozen(stream.context(5000)->with_index("codes:k=16,v=8"), options, place.device());
  Feed feed(place, stream, 5000, 5100);
  feed.run(frozen, 100);
  EXPECT_LT(near, 1.25 * distance(feed.outs(), want)) << "as codes of a context are";
  options.tail = "none";
  Session without(context, options, place.device());
  outs(without, 100);
  EXPECT_EQ(without.stats().coded_tokens, 0);
  for (std::size_t l = 0; l < 2; ++l) {
    const TailFigures figures = session.tail_figures()[l];
    EXPECT_EQ(figures.heads, 3600 * own_shape.q_heads);
    EXPECT_LT(figures.mean_error(), 2 * near);
    EXPECT_GT(figures.mean_error(), near / 2);
  }
}

TEST_P(OwnCodes, SessionsTogetherGiveWhatEachGivesAlone) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream = coded_stream(4600);
  const auto context = stream.context(own_context_tokens)->with_index("codes:k=16,v=8");
  // One whose own rows have codes, one with few rows, one that has none.
  const std::vector<std::int64_t> ends = {4500, 1600, own_context_tokens};
  std::vector<Session> alone;
  std::vector<Session> together;
  for (std::vector<Session>* sessions : {&alone, &together}) {
    for (const std::int64_t end : ends) {
      sessions->emplace_back(context, options_for(16), place.device());
      Feed(place, stream, own_context_tokens, 4500).run(sessions->back(), end, 250);
    }
  }
  EXPECT_EQ(together[0].stats().coded_tokens, 2048);
  std::vector<Session*> all;
  for (Session& session : together) all.push_back(&session);
  constexpr std::int64_t tokens = 3;
  for (std::int64_t round = 0; round < 4; ++round) {
    for (std::int64_t l = 0; l < own_shape.layers; ++l) {
      std::vector<float> q, k, v, want;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        const std::int64_t t = ends[i] + round * tokens;
        Feed feed(place, stream, t, t + tokens);
        feed.attend(alone[i], l, t, tokens);
        const std::vector<float> out = feed.outs()[static_cast<std::size_t>(l)];
        want.insert(want.end(), out.begin(), out.end());
        const auto add = [&](std::vector<float>& to, const std::vector<float>& from,
                             std::int64_t width) {
          to.insert(to.end(), from.begin() + t * width, from.begin() + (t + tokens) * width);
        };
        add(q, stream.q[static_cast<std::size_t>(l)], stream.q_width());
        add(k, stream.k[static_cast<std::size_t>(l)], stream.kv_width());
        add(v, stream.v[static_cast<std::size_t>(l)], stream.kv_width());
      }
      const Buffer on_device[] = {place.put(q), place.put(k), place.put(v), place.put(want)};
      Session::attend_together(all, {.layer = l,
                                     .tokens = tokens,
                                     .q = on_device[0].floats(),
                                     .k = on_device[1].floats(),
                                     .v = on_device[2].floats(),
                                     .out = on_device[3].floats()});
      const auto got = place.get(on_device[3].floats(), std::ssize(want));
      EXPECT_LT(distance({got}, {want}), 1e-4) << "round " << round << " layer " << l;
    }
  }
}

TEST_P(OwnCodes, FailedCallsLeaveTheSessionAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape = own_shape;
  shape.layers = 3;
  shape.sliding_window = {0, 0, 40};
  const TokenStream stream = coded_stream(3900, shape);
  RetrievalOptions options = options_for(8);
  options.dense_layers = 1;
  const auto context = stream.context(400)->with_index("codes:k=16,v=8");
  Session want(context, options, place.device());
  Session failing(context, options, place.device());
  Feed wanted(place, stream, 400, 3900);
  Feed feed(place, stream, 400, 3900);
  wanted.run(want, 2800, 256);
  feed.run(failing, 2800, 256);
  EXPECT_EQ(failing.stats().coded_tokens, 2048);
  std::int64_t failures = 0;
  for (const std::int64_t tokens : {5, 1, 1000, 1, 3}) {
    for (std::int64_t done = 0; done < tokens;) {
      const std::int64_t t = failing.tokens();
      const std::int64_t now = std::min<std::int64_t>(256, tokens - done);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        wanted.attend(want, l, t, now);
        for (std::int64_t n = 1;; ++n) {
          const ::test::FailingAt failing_at(n, [] { throw Error("planted"); });
          try {
            feed.attend(failing, l, t, now);
            break;
          } catch (const Error&) {
            ++failures;
            ASSERT_EQ(failing.tokens(), l > 0 ? t + now : t);
            ASSERT_EQ(failing.stats().coded_tokens, 2048);
          }
        }
      }
      done += now;
    }
  }
  EXPECT_GT(failures, 50);
  EXPECT_EQ(want.stats().coded_tokens, 3072);
  EXPECT_EQ(failing.stats().coded_tokens, 2048) << "making them anew failed";
  // One has codes of more rows than the other: they are as near to dense attention.
  Session dense(context, {.dense_layers = 3, .capacity = 20000}, place.device());
  Feed all(place, stream, 400, 3900);
  all.run(dense, failing.tokens(), 256);
  const auto last = [&](const Feed& of) {
    auto outs = of.outs();
    outs.resize(2);  // not the one that slides
    for (auto& out : outs)
      out.assign(out.begin() + (failing.tokens() - 3 - 400) * stream.q_width(),
                 out.begin() + (failing.tokens() - 400) * stream.q_width());
    return outs;
  };
  const double near = distance(last(wanted), last(all));
  EXPECT_LT(near, 0.2);
  EXPECT_LT(distance(last(feed), last(all)), 1.2 * near);
  EXPECT_EQ(failing.own_tokens(), want.own_tokens());
}

TEST_P(OwnCodes, OfACallThatIsStoppedAreMadeByTheNext) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape = own_shape;
  shape.layers = 1;
  const TokenStream stream = coded_stream(3200, shape);
  const auto context = stream.context(400)->with_index("codes:k=16,v=8");
  const auto run = [&](bool stopped) {
    static bool stops;
    stops = stopped;
    Session session(context, options_for(8), place.device());
    Feed feed(place, stream, 400, 3200);
    const Hooked hooked([](const char* at) {
      if (std::string_view(at) == "session.code_own" && std::exchange(stops, false))
        throw Stopped("planted");
    });
    std::int64_t failures = 0;
    while (session.tokens() < 3200) {
      try {
        feed.run(session, 3200, 200);
      } catch (const Stopped&) {
        ++failures;
      }
    }
    EXPECT_EQ(failures, stopped ? 1 : 0);
    EXPECT_GT(session.stats().coded_tokens, 0);
    return feed.outs();
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(OwnCodes, ReadingStepsAndRecallSeeThem) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(own_shape, 4100);
  const auto context = stream.context(1000)->with_index("codes:k=16,v=8");
  RetrievalOptions options = options_for(100000);
  options.measure_recall = true;
  Session all(context, options, place.device());
  Session dense(context, {.dense_layers = 2, .capacity = 20000}, place.device());
  std::vector<std::vector<float>> outs[2];
  for (Session* session : {&all, &dense}) {
    Feed feed(place, stream, 1000, 4100);
    feed.run(*session, 4000, 256);
    for (std::int64_t l = 0; l < own_shape.layers; ++l) {
      AttentionStep step = feed.step(l, 4000, 100);
      step.kv_tokens = 0;
      session->attend(step);
    }
    for (auto& out : outs[session == &dense] = feed.outs())
      out.erase(out.begin(), out.begin() + 3000 * stream.q_width());
  }
  EXPECT_EQ(all.stats().coded_tokens, 2048);
  EXPECT_LT(distance(outs[0], outs[1]), place.is_cuda() ? 5e-3 : 1e-4);
  EXPECT_EQ(all.stats().exact_rows_found, all.stats().exact_rows);
}

TEST_P(OwnCodes, WithoutMemoryForThemRowsAreAttended) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(own_shape, 4000);
  const auto context = stream.context(1)->with_index("codes:k=16,v=8");
  Session session(context, options_for(1), place.device());
  Feed feed(place, stream, 1, 4000);
  {
    const Hooked hooked([](const char* at) {
      if (std::string_view(at) == "session.scan_own") throw OutOfMemory("codes", 2, 1, "test");
    });
    feed.run(session, 3000, 256);
  }
  EXPECT_EQ(session.stats().coded_tokens, 0);
  feed.run(session, 3010, 1);
  EXPECT_LE(feed.worst({.dense_layers = 2}, {2500, 2999, 3009}), 1.0);
  // What else goes wrong ends one call, and nothing else.
  Session other(context, options_for(1), place.device());
  bool failed = false;
  {
    const Hooked hooked([](const char* at) {
      if (std::string_view(at) == "session.scan_own") throw Error("planted");
    });
    for (const std::int64_t end : {3000, 3005}) {
      try {
        feed.run(other, end, 10);
      } catch (const Error& error) {
        EXPECT_FALSE(failed) << "once";
        failed = std::string_view(error.what()) == "planted";
        feed.run(other, end, 10);
      }
    }
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(other.stats().coded_tokens, 0);
  EXPECT_LE(feed.worst({.dense_layers = 2}, {2500, 3004}), 1.0);
  feed.run(other, 4000, 10);
  EXPECT_EQ(other.stats().coded_tokens, 3072);
}

TEST(OwnCodesOfAHost, AreMadeOfManyRows) {
  const Place place("cpu");
  const TokenStream stream({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64}, 12400);
  Session session(stream.context(20)->with_index("codes:k=16,v=8"), options_for(16),
                  place.device());
  Feed feed(place, stream, 20, 12400);
  feed.run(session, 12300, 240);
  EXPECT_EQ(session.stats().coded_tokens, 0);
  feed.run(session, 12400, 20);
  EXPECT_EQ(session.stats().coded_tokens, 12288);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, OwnCodes, testing::ValuesIn(::test::devices));

}  // namespace
}  // namespace topkv
