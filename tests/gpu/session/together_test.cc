// Sessions over one context that are stepped together, on a device and on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using test::Feed;
using test::Place;
using test::TokenStream;

struct Case {
  const char* name;
  const char* device;
  const char* index;
  const char* tail = "";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr std::int64_t context_tokens = 3000;
const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

/// Tensors of a step of one layer for several sessions.
struct Tensors {
  Tensors(const Place& place, const TokenStream& stream, std::int64_t layer,
          const std::vector<Session*>& sessions, std::int64_t tokens)
      : place(place),
        outs(std::ssize(sessions) * tokens * stream.q_width()),
        lses(std::ssize(sessions) * tokens * stream.shape.q_heads) {
    const auto all = [&](const std::vector<float>& from, std::int64_t width) {
      std::vector<float> values;
      for (const Session* session : sessions) {
        // Layer 0 has moved on when the others are given its tokens.
        const std::int64_t first = session->tokens() - (layer > 0 ? tokens : 0);
        values.insert(values.end(), from.begin() + first * width,
                      from.begin() + (first + tokens) * width);
      }
      return values;
    };
    const auto at = static_cast<std::size_t>(layer);
    q = place.put(all(stream.q[at], stream.q_width()));
    k = place.put(all(stream.k[at], stream.kv_width()));
    v = place.put(all(stream.v[at], stream.kv_width()));
    out = place.put(std::vector<float>(static_cast<std::size_t>(outs), NAN));
    lse = place.put(std::vector<float>(static_cast<std::size_t>(lses), NAN));
    step = {.layer = layer,
            .tokens = tokens,
            .q = q.floats(),
            .k = k.floats(),
            .v = v.floats(),
            .out = out.floats(),
            .lse = lse.floats()};
  }

  const Place& place;
  std::int64_t outs, lses;
  Buffer q, k, v, out, lse;
  AttentionStep step;
};

class Together : public testing::TestWithParam<Case> {
 protected:
  RetrievalOptions options() const {
    return {.index = GetParam().index,
            .k = TopK::same(16),
            .tail = GetParam().tail,
            .window = 16,
            .sinks = 2,
            .capacity = 1024};
  }
  static std::shared_ptr<const Context> context_of(const TokenStream& stream) {
    auto context = stream.context(context_tokens)->with_index(GetParam().index);
    return *GetParam().tail == 0 ? context : context->with_index(GetParam().tail);
  }
};

TEST_P(Together, EqualsOneByOne) {
  TOPKV_NEEDS_DEVICE(std::string(GetParam().device));
  const Place place(GetParam().device);
  const TokenStream stream(shape, context_tokens + 400);
  const auto context = context_of(stream);
  for (const std::int64_t count : {1, 2, 5, 11}) {
    // Sessions of different lengths, each of them twice; one wants other rows than the rest.
    std::vector<Session> together;
    std::vector<Session> alone;
    for (std::int64_t i = 0; i < count; ++i) {
      RetrievalOptions of = options();
      if (i == 3) of.k = TopK::same(40);
      Session session(context, of, place.device());
      if (i > 0) Feed(place, stream, context_tokens, context_tokens + 13 * i).run(session, 13);
      alone.push_back(session.fork());
      together.push_back(std::move(session));
    }
    std::vector<Session*> all;
    for (Session& session : together) all.push_back(&session);
    for (const std::int64_t tokens : {1, 1, 4, 1, 30, 1}) {
      SCOPED_TRACE(testing::Message() << count << " sessions, " << tokens << " tokens");
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        const Tensors given(place, stream, layer, all, tokens);
        Session::attend_together(all, given.step);
        const std::vector<float> got = place.get(given.out.floats(), given.outs);
        const std::vector<float> got_lse = place.get(given.lse.floats(), given.lses);
        for (std::int64_t i = 0; i < count; ++i) {
          Session* one = &alone[static_cast<std::size_t>(i)];
          const Tensors own(place, stream, layer, {one}, tokens);
          one->attend(own.step);
          const auto part = [&](const std::vector<float>& of, std::int64_t size) {
            return std::vector<float>(of.begin() + i * size, of.begin() + (i + 1) * size);
          };
          const std::vector<float> want = place.get(own.out.floats(), own.outs);
          EXPECT_LT(distance({part(got, own.outs)}, {want}), 1e-4) << "session " << i;
          const std::vector<float> lse = place.get(own.lse.floats(), own.lses);
          EXPECT_LT(distance({part(got_lse, own.lses)}, {lse}), 1e-4) << "session " << i;
        }
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(together[at].own_tokens(), alone[at].own_tokens());
      EXPECT_EQ(together[at].stats().steps, alone[at].stats().steps);
      EXPECT_EQ(together[at].stats().rows_retrieved, alone[at].stats().rows_retrieved);
      EXPECT_EQ(together[at].tail_figures()[0].heads, alone[at].tail_figures()[0].heads);
    }
  }
}

TEST_P(Together, ARefusedStepLeavesAllAsTheyWere) {
  TOPKV_NEEDS_DEVICE(std::string(GetParam().device));
  const Place place(GetParam().device);
  const TokenStream stream(shape, context_tokens + 40);
  const auto context = context_of(stream);
  Session a(context, options(), place.device());
  Feed(place, stream, context_tokens, context_tokens + 20).run(a, 5);
  Session b = a.fork();
  Session c = a.fork();
  TokenStream bad = stream;
  // The last session's query is not finite: the others' rows have been appended by then.
  for (std::int64_t i = context_tokens + 20; i < stream.total; ++i)
    bad.q[0][static_cast<std::size_t>(i * stream.q_width() + 7)] = i % 2 == 0 ? NAN : 1.0F;
  for (const std::int64_t tokens : {1, 6}) {
    const Tensors given(place, bad, 0, {&a, &b}, tokens);
    std::vector<Session*> both{&a, &b};
    EXPECT_THROW(Session::attend_together(both, given.step), InvalidArgument);
    EXPECT_EQ(a.own_tokens(), 20);
    EXPECT_EQ(b.own_tokens(), 20);
  }
  Feed want(place, stream, context_tokens + 20, stream.total);
  want.run(c, 3);
  for (Session* session : {&a, &b}) {
    Feed got(place, stream, context_tokens + 20, stream.total);
    got.run(*session, 3);
    EXPECT_EQ(got.outs(), want.outs());
    EXPECT_EQ(session->stats().rows_retrieved, c.stats().rows_retrieved);
  }
}

TEST_P(Together, SessionsThatCannotBeAreRefused) {
  TOPKV_NEEDS_DEVICE(std::string(GetParam().device));
  const Place place(GetParam().device);
  const TokenStream stream(shape, context_tokens + 10);
  const auto context = context_of(stream);
  const auto other = context_of(stream);
  Session a(context, options(), place.device());
  Session b(other, options(), place.device());
  const Tensors given(place, stream, 0, {&a, &b}, 1);
  const auto message = [&](const std::vector<Session*>& sessions) {
    try {
      Session::attend_together(sessions, given.step);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message({}).find("no sessions"), std::string::npos);
  EXPECT_NE(message({&a, nullptr}).find("session 1 is null"), std::string::npos);
  EXPECT_NE(message({&a, &a}).find("session 1 is given twice"), std::string::npos);
  EXPECT_NE(message({&a, &b}).find("another context"), std::string::npos);
  Session c = a.fork();
  AttentionStep step = given.step;
  std::vector<Session*> both{&a, &c};
  const Tensors own(place, stream, 0, {&c}, 1);
  c.attend(own.step);  // and not in layer 1
  EXPECT_NE(message({&a, &c}).find("session 1: attend: layer 0 gets new tokens"),
            std::string::npos);
  c.truncate(0);
  step.out = const_cast<float*>(step.q) + stream.q_width();  // of the other session
  EXPECT_THROW(Session::attend_together(both, step), InvalidArgument);
  step = given.step;
  step.tokens = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_THROW(Session::attend_together(both, step), InvalidArgument);
  EXPECT_EQ(a.own_tokens(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Together,
    testing::Values(Case{"host_exact", "cpu", "exact"}, Case{"host_codes", "cpu", "codes"},
                    Case{"host_tail", "cpu", "exact", "codes"}, Case{"exact", "cuda", "exact"},
                    Case{"codes", "cuda", "codes"}, Case{"codes_without_tail", "cuda", "codes:v=0"},
                    Case{"tail", "cuda", "exact", "codes"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace topkv
