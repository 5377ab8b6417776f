// Sessions over one context have its window, and room for steps, together: each gives the bits of
// one alone, costs little, and gives back what it took.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/faults_guard.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;
using Outs = std::vector<std::vector<float>>;

constexpr std::int64_t kib = 1024;
constexpr std::int64_t mib = 1024 * kib;

AttentionShape small() { return {.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64}; }

/// Bytes that the device has been asked for under this name.
std::int64_t taken(const Device& device, const std::string& what) {
  for (const MemoryItem& item : device.memory().items)
    if (item.what == what) return item.bytes;
  return 0;
}

/// Of all that sessions take.
std::int64_t taken(const Device& device) {
  return taken(device, "context's window") + taken(device, "steps") + taken(device, "session") +
         taken(device, "tiles of dense layers");
}

struct Case {
  const char* name;
  const char* index;
  std::int64_t dense_layers = 0;
  DType rows = DType::bf16;
  std::int64_t context = 3000;
  std::int64_t sinks = 4;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SharedWindow : public testing::TestWithParam<Case> {
 protected:
  static RetrievalOptions options() {
    return {.index = GetParam().index,
            .k = TopK::same(16),
            .dense_layers = GetParam().dense_layers,
            .window = 40,
            .sinks = GetParam().sinks,
            .capacity = 1024};
  }
  static std::shared_ptr<const Context> context_of(const TokenStream& stream) {
    const auto context = stream.context(GetParam().context, GetParam().rows);
    return std::string(GetParam().index) == "exact" ? context
                                                    : context->with_index(GetParam().index);
  }
};

/// Each with tokens of its own, in steps of its own size, one after the other's.
TEST_P(SharedWindow, GivesEachSessionTheBitsOfOneAlone) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::int64_t first = GetParam().context;
  constexpr std::int64_t own = 90;
  constexpr std::int64_t steps[] = {1, 7, 40, 1, 90};
  std::vector<TokenStream> streams;
  // The same context, and other tokens behind it.
  for (unsigned i = 0; i < std::size(steps); ++i) {
    streams.emplace_back(small(), first + own, 1);
    const TokenStream other(small(), first + own, 100 * (i + 1));
    TokenStream& stream = streams.back();
    for (std::size_t l = 0; l < 2; ++l) {
      const auto replace = [&](std::vector<float>& to, const std::vector<float>& from,
                               std::int64_t width) {
        std::copy(from.begin() + first * width, from.end(), to.begin() + first * width);
      };
      replace(stream.q[l], other.q[l], stream.q_width());
      replace(stream.k[l], other.k[l], stream.kv_width());
      replace(stream.v[l], other.v[l], stream.kv_width());
    }
  }
  const auto context = context_of(streams[0]);
  std::vector<Outs> want;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    Session alone(context, options(), place.device());
    Feed feed(place, streams[i], first, first + own);
    feed.run(alone, steps[i]);
    want.push_back(feed.outs());
  }
  EXPECT_EQ(taken(place.device()), 0);
  std::vector<std::optional<Session>> sessions(streams.size());
  std::vector<std::unique_ptr<Feed>> feeds;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    sessions[i].emplace(context, options(), place.device());
    feeds.push_back(std::make_unique<Feed>(place, streams[i], first, first + own));
  }
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (!sessions[i]) continue;
      const std::int64_t until = std::min(first + own, sessions[i]->tokens() + steps[i]);
      feeds[i]->run(*sessions[i], until, steps[i]);
      if (until < first + own) {
        more = true;
      } else {
        sessions[i].reset();  // while the others go on
      }
    }
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "session " << i);
    EXPECT_EQ(feeds[i]->outs(), want[i]);
  }
  EXPECT_EQ(taken(place.device()), 0);
}

/// Own rows grow, and later take the places of those that have left the window.
TEST_P(SharedWindow, GivesWayToOwnRows) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::int64_t first = GetParam().context;
  constexpr std::int64_t own = 700;
  const TokenStream stream(small(), first + own);
  const auto context = context_of(stream);
  Session by_one(context, options(), place.device());
  Feed ones(place, stream, first, first + own);
  ones.run(by_one, 1);
  const Outs want = ones.outs();
  // A fork copies its rows, and a session that took tokens back copies those that it lost.
  Session session(context, options(), place.device());
  Feed feed(place, stream, first, first + own);
  feed.run(session, first + 330, 1);
  const Session closed = session.fork();
  Session fork = closed.fork();
  feed.run(session, first + 660, 1);
  session.truncate(330);
  feed.run(session, 1);
  EXPECT_EQ(feed.outs(), want);
  Feed of_fork(place, stream, first, first + own);
  of_fork.run(fork, 1);
  const Outs got = of_fork.outs();
  for (std::size_t l = 0; l < got.size(); ++l) {
    const auto since = static_cast<std::ptrdiff_t>(330 * stream.q_width());
    EXPECT_TRUE(std::equal(want[l].begin() + since, want[l].end(), got[l].begin() + since))
        << "layer " << l;
  }
}

/// Threads that open, step and close sessions, while others do.
TEST_P(SharedWindow, IsFoundFromManyThreads) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::int64_t first = GetParam().context;
  constexpr std::int64_t own = 12;
  const TokenStream stream(small(), first + own);
  const auto context = context_of(stream);
  const auto run = [&](std::int64_t step) {
    Session session(context, options(), place.device());
    Feed feed(place, stream, first, first + own);
    feed.run(session, step);
    return feed.outs();
  };
  const Outs want[] = {run(1), run(5)};
  std::vector<std::thread> threads;
  std::vector<std::int64_t> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 12; ++i) {
        const std::size_t kind = (t + i) % 2;
        if (run(kind == 0 ? 1 : 5) != want[kind]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::int64_t>(wrong.size()));
  EXPECT_EQ(taken(place.device()), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Of, SharedWindow,
    testing::Values(Case{"exact", "exact"}, Case{"codes", "codes"}, Case{"quest", "quest:page=4"},
                    Case{"first_layer_dense", "exact", 1},
                    Case{"rows_in_8_bits", "exact", 0, DType::q8},
                    Case{"context_below_the_window", "exact", 0, DType::bf16, 30},
                    Case{"sinks_beyond_the_context", "exact", 0, DType::bf16, 300, 310}),
    [](const auto& info) { return std::string(info.param.name); });

/// The bundled model's shape: what docs/reference/sessions.md says.
class ManySessions : public testing::Test {
 protected:
  static constexpr std::int64_t first = 2000;
  static AttentionShape shape() {
    return {.layers = 8, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
  }
  static RetrievalOptions options() { return {.k = TopK::same(8)}; }
};

TEST_F(ManySessions, CostTheirOwnRowsAndGiveThemBack) {
  TOPKV_NEEDS_GPU();
  constexpr std::int64_t count = 100;
  const Place place("cuda");
  const TokenStream stream(shape(), first + 20);
  const auto context = stream.context(first);
  Feed feed(place, stream, first, first + 20);
  const std::int64_t before = place.device().memory().used;
  {
    std::vector<Session> sessions;
    sessions.emplace_back(context, options(), place.device());
    const std::int64_t one = taken(place.device());
    EXPECT_GE(taken(place.device(), "context's window"), 4 * mib);
    EXPECT_LE(one, 7 * mib);  // the window, and what one step at a time works in
    while (std::ssize(sessions) < count) sessions.emplace_back(context, options(), place.device());
    EXPECT_LE(taken(place.device()) - one, (count - 1) * kib) << "opened";
    const auto each = [&](std::int64_t until, std::int64_t step) {
      for (Session& session : sessions) feed.run(session, until, step);
      return (taken(place.device()) - one) / count;
    };
    EXPECT_LE(each(first + 1, 1), 100 * kib);
    EXPECT_LE(each(first + 20, 19), 200 * kib);
    EXPECT_LE(place.device().memory().used - before, 8 * mib + count * 200 * kib);
    EXPECT_LE(taken(place.device(), "steps"), mib) << "sessions one after the other";
    sessions.erase(sessions.begin() + 1, sessions.end());
    EXPECT_LE(taken(place.device()), one + 200 * kib) << "all but one are closed";
  }
  EXPECT_EQ(taken(place.device()), 0);
  EXPECT_EQ(place.device().memory().used, before);
}

TEST_F(ManySessions, ShareWhatIsAlikeAlone) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape(), first);
  const auto context = stream.context(first);
  const char* what = "context's window";
  const Session session(context, options(), place.device());
  const std::int64_t one = taken(place.device(), what);
  // The same rows, with other indices over them and another index searched.
  const auto indexed = context->with_index("codes");
  RetrievalOptions by_codes = options();
  by_codes.index = "codes";
  const Session over_codes(indexed, by_codes, place.device());
  EXPECT_EQ(taken(place.device(), what), one);
  RetrievalOptions narrow = options();
  narrow.window = 512;
  {
    const Session other(context, narrow, place.device());
    EXPECT_GT(taken(place.device(), what), one);
    EXPECT_LT(taken(place.device(), what), 2 * one);
  }
  EXPECT_EQ(taken(place.device(), what), one);
  {
    const Session other(stream.context(first), options(), place.device());
    EXPECT_EQ(taken(place.device(), what), 2 * one) << "another context, if of the same rows";
  }
  EXPECT_EQ(taken(place.device(), what), one);
}

/// Several sessions that step at a time have room each, as long as there are so many.
TEST_F(ManySessions, ThatStepTogetherHaveRoomEach) {
  TOPKV_NEEDS_GPU();
  constexpr std::int64_t count = 16;
  const Place place("cuda");
  const TokenStream stream(shape(), first + 8);
  const auto context = stream.context(first);
  std::vector<Session> sessions;
  std::vector<Session*> all;
  for (std::int64_t i = 0; i < count; ++i)
    sessions.emplace_back(context, options(), place.device());
  for (Session& session : sessions) all.push_back(&session);
  const std::int64_t before = taken(place.device(), "steps");
  const auto step_together = [&](std::int64_t tokens) {
    const std::int64_t q = tokens * stream.q_width();
    const std::int64_t kv = tokens * stream.kv_width();
    const auto several = [&](const std::vector<float>& from, std::int64_t size) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < count; ++i)
        values.insert(values.end(), from.end() - size, from.end());
      return place.put(values);
    };
    const Buffer out = place.room(count * q);
    for (std::int64_t l = 0; l < shape().layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const Buffer queries = several(stream.q[at], q);
      const Buffer keys = several(stream.k[at], kv);
      const Buffer values = several(stream.v[at], kv);
      Session::attend_together(all, {.layer = l,
                                     .tokens = tokens,
                                     .q = queries.floats(),
                                     .k = keys.floats(),
                                     .v = values.floats(),
                                     .out = out.floats()});
      const std::vector<float> got = place.get(out.floats(), count * q);
      for (std::int64_t i = 1; i < count; ++i)
        EXPECT_TRUE(std::equal(got.begin(), got.begin() + q, got.begin() + i * q)) << i;
    }
  };
  step_together(1);
  EXPECT_LE(taken(place.device(), "steps") - before, count * 16 * kib);
  step_together(7);
  EXPECT_GT(taken(place.device(), "steps") - before, (count - 1) * 512 * kib);
  sessions.erase(sessions.begin() + 1, sessions.end());
  EXPECT_LE(taken(place.device(), "steps"), before);
}

/// Where the device has no room for more rows, a step says so and leaves the session as it was.
TEST_F(ManySessions, WithoutRoomForRowsRefuseTheStep) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape wide{.layers = 8, .q_heads = 8, .kv_heads = 8, .head_dim = 128};
  const TokenStream stream(wide, 400 + 80);
  const auto context = stream.context(400);
  RetrievalOptions of = options();
  of.window = 100;
  Session session(context, of, place.device());
  Session other(context, of, place.device());
  Feed want(place, stream, 400, stream.total);
  want.run(other, 10);
  Feed feed(place, stream, 400, stream.total);
  feed.run(session, 410, 10);
  {
    const DeviceMemory memory = place.device().memory();
    const std::int64_t pages = (memory.ceiling - memory.used) / (2 * mib);
    const Buffer rest = place.compute().allocate(pages * 2 * mib, "test");
    EXPECT_THROW(feed.attend(session, 0, 410, 70), OutOfMemory);
    EXPECT_EQ(session.own_tokens(), 10);
    EXPECT_THROW(const Session fork = other.fork(), OutOfMemory);
    EXPECT_EQ(other.own_tokens(), 80);
  }
  feed.run(session, 10);
  EXPECT_EQ(feed.outs(), want.outs());
}

/// The copy is there before a session has it, however late it comes.
TEST_F(ManySessions, FindAWindowThatIsWhole) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape(), first + 30);
  const auto context = stream.context(first);
  Outs want;
  for (const int delay_us : {0, 2000}) {
    const test::InjectedFaults late(delay_us, false);
    Session a(context, options(), place.device());
    Session b(context, options(), place.device());
    for (Session* session : {&b, &a}) {
      Feed feed(place, stream, first, first + 30);
      feed.run(*session, 1);
      if (want.empty()) want = feed.outs();
      EXPECT_EQ(feed.outs(), want);
    }
  }
}

}  // namespace
}  // namespace topkv
