// Sessions on a device that chooses pages, rows and clusters itself, against sessions on the host:
// the same rows are found, so that results are the same but for rounding.
#include "tests/gpu/session/choosing_session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using test::Choices;
using test::expect_same;
using test::Feed;
using test::Outcome;
using test::Place;
using test::prefilled;
using test::run;
using test::same;
using test::TokenStream;

constexpr std::int64_t context_tokens = 3000;
const AttentionShape grouped{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};
const AttentionShape single{.layers = 2, .q_heads = 3, .kv_heads = 3, .head_dim = 128};

struct Case {
  const char* name;
  const char* index;
  AttentionShape shape = grouped;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ChoosingSession : public testing::TestWithParam<Case> {
 protected:
  RetrievalOptions options() const {
    return {.index = GetParam().index,
            .k = TopK::same(48),
            .tail = "none",
            .window = 16,
            .sinks = 5,
            .capacity = 200};
  }
};

/// Tokens of its own leave the window meanwhile.
TEST_P(ChoosingSession, FindsTheRowsThatTheHostFinds) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  const TokenStream stream(GetParam().shape, context_tokens + 60);
  const auto context = prefilled(stream, context_tokens)->with_index(GetParam().index);
  for (const std::int64_t k : {1, 48, 700}) {
    SCOPED_TRACE(k);
    RetrievalOptions options = this->options();
    options.k = TopK::same(k);
    const Outcome want = run(host, stream, context, options, 1);
    const Outcome got = run(cuda, stream, context, options, 1);
    expect_same(got, want);
    EXPECT_EQ(want.choices, 0);
    EXPECT_EQ(got.choices, 60 * stream.shape.layers);
    EXPECT_GT(got.stats.device_index_bytes, 0);
    // Steps of several tokens are the host's.
    const Outcome many = run(cuda, stream, context, options, 7);
    expect_same(many, run(host, stream, context, options, 7));
    EXPECT_EQ(many.choices, 0);
  }
}

TEST_P(ChoosingSession, RulesTailsGroupsAndDenseLayersAreAsOnTheHost) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  const TokenStream stream(GetParam().shape, context_tokens + 20);
  const auto context = prefilled(stream, context_tokens)
                           ->with_index(GetParam().index)
                           ->with_index("mean")
                           ->with_index("codes:k=16,v=8");
  const auto check = [&](const char* name, auto change) {
    SCOPED_TRACE(name);
    RetrievalOptions options = this->options();
    change(options);
    const Outcome got = run(cuda, stream, context, options, 1);
    expect_same(got, run(host, stream, context, options, 1));
    EXPECT_EQ(got.choices, 20 * (stream.shape.layers - options.dense_layers));
  };
  check("by group", [](auto& o) { o.select_by = SelectBy::group; });
  check("first layer dense", [](auto& o) { o.dense_layers = 1; });
  check("mean", [](auto& o) { o.tail = "mean"; });
  check("codes", [](auto& o) { o.tail = "codes:k=16,v=8"; });
  check("mass", [](auto& o) { o.tail = "codes:k=16,v=8", o.mass = 0.4; });
  check("error", [](auto& o) { o.tail = "codes:k=16,v=8", o.error = 0.3; });
  check("window of one, no sinks", [](auto& o) { o.window = 1, o.sinks = 0; });
  check("nearly all keys", [](auto& o) { o.k = TopK::same(context_tokens - 40); });
}

TEST_P(ChoosingSession, ForkTruncateAndTogetherGoOnAsBefore) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, context_tokens + 60);
  const auto context = prefilled(stream, context_tokens)->with_index(GetParam().index);
  Session session(context, options(), place.device());
  const std::int64_t end = context_tokens + 60;
  const auto outs = [&](Session& of) {
    Feed feed(place, stream, context_tokens + 20, end);
    feed.run(of, 1);
    return feed.outs();
  };
  Feed first(place, stream, context_tokens, end);
  first.run(session, context_tokens + 20, 1);
  const std::int64_t before = place.device().memory().used;
  Session copy = session.fork();
  EXPECT_LT(place.device().memory().used - before, 4 << 20) << "what stands for keys was copied";
  EXPECT_EQ(copy.stats().device_index_bytes, session.stats().device_index_bytes);
  const auto want = outs(session);
  EXPECT_EQ(outs(copy), want);
  session.truncate(20);
  EXPECT_EQ(outs(session), want);
}

TEST_P(ChoosingSession, StepsAllocateNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, context_tokens + 40);
  const auto context = prefilled(stream, context_tokens)->with_index(GetParam().index);
  Session session(context, options(), place.device());
  Feed feed(place, stream, context_tokens, context_tokens + 40);
  const std::int64_t before = place.device().memory().used;
  feed.run(session, 1);
  EXPECT_EQ(place.device().memory().used, before);
}

/// Choices share memory: none may begin before another has written what it chose.
TEST_P(ChoosingSession, ThreadsOverOneContextDoNotDisturbEachOther) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, context_tokens + 60);
  const auto context = prefilled(stream, context_tokens)->with_index(GetParam().index);
  const auto outs = [&] {
    Session session(context, options(), place.device());
    auto lock = place.compute().lock();
    Feed feed(place, stream, context_tokens, context_tokens + 60);
    lock.unlock();
    feed.run(session, 1);
    lock.lock();
    return feed.outs();
  };
  const auto want = outs();
  std::vector<std::vector<std::vector<float>>> got(4);
  std::vector<std::thread> threads;
  for (auto& of : got) threads.emplace_back([&] { of = outs(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& of : got) EXPECT_EQ(of, want);
}

INSTANTIATE_TEST_SUITE_P(Methods, ChoosingSession,
                         testing::Values(Case{"quest", "quest:page=16"},
                                         Case{"quest_of_one_head", "quest:page=4", single},
                                         Case{"sparq", "sparq:r=16"},
                                         Case{"sparq_of_one_head", "sparq:r=32", single},
                                         Case{"squeezed", "squeezed:c=5,coarse=0,s=0"},
                                         Case{"retroinfer", "retroinfer:size=16,segment=1024,v=0"}),
                         testing::PrintToStringParamName());

/// Pages of one key, and all components of queries that have their keys to themselves, are exact
/// search: what is attended is known in float64.
TEST(ChoosingSessions, OfEveryKeyByItselfAreDenseAttentionOverTheBestRows) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const auto& [index, shape] :
       {std::pair{"quest:page=1", grouped}, {"quest:page=1", single}, {"sparq:r=1024", single}}) {
    const TokenStream stream(shape, context_tokens + 40);
    const auto context = stream.context(context_tokens)->with_index(index);
    const RetrievalOptions options{
        .index = index, .k = TopK::same(20), .window = 16, .sinks = 5, .capacity = 200};
    const Choices choices;
    Session session(context, options, place.device());
    Feed feed(place, stream, context_tokens, context_tokens + 40);
    feed.run(session, 1);
    EXPECT_EQ(Choices::made(), 40 * shape.layers);
    EXPECT_EQ(Choices::dropped(), 0);
    EXPECT_LE(feed.worst(options, {context_tokens, context_tokens + 17, context_tokens + 39}), 1.0)
        << index;
  }
}

/// Queries that bf16 does not hold: a device chooses pages and rows by others near them, so that
/// rows that score alike may change places, and the host finds no less with its own.
TEST(ChoosingSessions, QueriesThatAreRoundedFindAsMuch) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  TokenStream stream(grouped, context_tokens + 40);
  for (std::size_t l = 0; l < stream.q.size(); ++l)
    stream.q[l] =
        reference::random_floats(std::ssize(stream.q[l]), 50 + static_cast<unsigned>(l), 2.0F);
  const auto plain = prefilled(stream, context_tokens);
  for (const char* index : {"quest:page=16", "sparq:r=16", "retroinfer:size=16,segment=1024,v=0",
                            "squeezed:c=5,coarse=0,s=0"}) {
    SCOPED_TRACE(index);
    const auto context = plain->with_index(index);
    const RetrievalOptions options{.index = index,
                                   .k = TopK::same(48),
                                   .tail = "none",
                                   .window = 16,
                                   .sinks = 5,
                                   .capacity = 200};
    const Outcome want = run(host, stream, context, options, 1);
    const Outcome got = run(cuda, stream, context, options, 1);
    EXPECT_EQ(got.choices, 40 * grouped.layers);
    EXPECT_EQ(got.dropped, 0);
    EXPECT_EQ(got.stats.rows_retrieved, want.stats.rows_retrieved);
    // SparQ may read another component, and so rank all rows a little differently.
    if (std::string_view(index).substr(0, 5) != "sparq") {
      EXPECT_LT(distance(got.outs, want.outs), 0.03);
    }
    const auto found = static_cast<double>(want.stats.exact_rows_found);
    EXPECT_NEAR(static_cast<double>(got.stats.exact_rows_found), found, 0.01 * found);
  }
}

/// Importances are the host's: of scores in float32, so that a cluster would have to be as near to
/// the threshold as they are rounded to be on its other side.
TEST(ChoosingSessions, ThresholdsLeaveOutWhatTheyDoOnTheHost) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  for (const AttentionShape& shape : {grouped, single}) {
    TokenStream stream(shape, context_tokens + 40);
    for (std::size_t l = 0; l < stream.q.size(); ++l)  // not exact in bf16
      stream.q[l] =
          reference::random_floats(std::ssize(stream.q[l]), 60 + static_cast<unsigned>(l), 2.0F);
    // A channel that is far larger than others, as models' keys have: rounded, it would move sums.
    for (auto& keys : stream.k) {
      for (std::size_t i = 3; i < keys.size(); i += static_cast<std::size_t>(shape.head_dim))
        keys[i] += 30;
    }
    const char* index = "squeezed:c=5,coarse=0,s=90";
    const auto context = prefilled(stream, context_tokens)->with_index(index);
    const RetrievalOptions options{
        .index = index, .k = TopK::same(1000), .window = 16, .sinks = 5, .capacity = 200};
    const Outcome want = run(host, stream, context, options, 1);
    const Outcome got = run(cuda, stream, context, options, 1);
    EXPECT_EQ(got.choices, 40 * shape.layers);
    EXPECT_EQ(got.dropped, 0);
    EXPECT_LT(distance(got.outs, want.outs), 0.03);
    EXPECT_EQ(got.stats.rows_retrieved, want.stats.rows_retrieved);
    EXPECT_EQ(got.stats.exact_rows_found, want.stats.exact_rows_found);
    EXPECT_EQ(got.stats.mass_found, want.stats.mass_found);
    const auto rows = static_cast<double>(want.stats.rows_retrieved);
    EXPECT_GT(rows, 0);
    EXPECT_LT(rows, 0.9 * 40 * static_cast<double>(shape.layers * shape.q_heads * 1000));
  }
}

TEST(ChoosingSessions, SeveralTogetherAndTwoLevelsAreSearchedByTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(grouped, context_tokens + 8);
  const auto context = prefilled(stream, context_tokens)
                           ->with_index("quest:page=16")
                           ->with_index("squeezed:coarse=1,s=80");
  const RetrievalOptions options{
      .index = "quest:page=16", .k = TopK::same(48), .window = 16, .capacity = 20};
  const Choices choices;
  for (const std::int64_t count : {2, 5}) {  // of which the device is given four at a time
    const std::int64_t before = Choices::made();
    std::vector<Session> sessions;
    std::vector<Session*> all;
    for (std::int64_t i = 0; i < count; ++i)
      sessions.emplace_back(context, options, place.device());
    for (Session& session : sessions) all.push_back(&session);
    const std::int64_t width = stream.q_width();
    std::vector<float> q, k, v;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from,
                           std::int64_t size) {
        const auto at = from.begin() + context_tokens * size;
        to.insert(to.end(), at, at + size);
      };
      add(q, stream.q[0], width);
      add(k, stream.k[0], stream.kv_width());
      add(v, stream.v[0], stream.kv_width());
    }
    const Buffer on_q = place.put(q), on_k = place.put(k), on_v = place.put(v);
    const Buffer out = place.room(count * width);
    Session::attend_together(all, {.layer = 0,
                                   .tokens = 1,
                                   .q = on_q.floats(),
                                   .k = on_k.floats(),
                                   .v = on_v.floats(),
                                   .out = out.floats()});
    const auto got = place.get(out.floats(), count * width);
    EXPECT_EQ(Choices::made(), before);
    Session alone(context, options, place.device());
    Feed feed(place, stream, context_tokens, context_tokens + 8);
    feed.attend(alone, 0, context_tokens, 1);
    EXPECT_EQ(Choices::made(), before + 1);
    const auto want = feed.outs()[0];
    for (std::int64_t i = 0; i < count * width; ++i)
      ASSERT_NEAR(got[static_cast<std::size_t>(i)], want[static_cast<std::size_t>(i % width)],
                  same);
  }
  Session two_levels(context, {.index = "squeezed:coarse=1,s=80", .window = 16, .capacity = 20},
                     place.device());
  Feed feed(place, stream, context_tokens, context_tokens + 8);
  const std::int64_t before = Choices::made();
  feed.run(two_levels, 1);
  EXPECT_EQ(Choices::made(), before);
  EXPECT_EQ(two_levels.stats().device_index_bytes, 0);
}

TEST(ChoosingSessions, BlocksOfRowsSlidingLayersAndChunksAreAsOnTheHost) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  AttentionShape sliding = grouped;
  sliding.sliding_window = {0, 12};
  AttentionShape chunks = grouped;
  chunks.chunk_len = 1100;
  for (const char* index : {"quest:page=16", "sparq:r=16", "retroinfer:v=0"}) {
    for (const auto& [shape, dtype] :
         {std::pair{sliding, KvDType{}}, {chunks, KvDType{}}, {grouped, KvDType(DType::q8)}}) {
      SCOPED_TRACE(index);
      const TokenStream stream(shape, 2030);
      const auto context = stream.context(2000, dtype)->with_index(index);
      const RetrievalOptions options{
          .index = index, .k = TopK::same(48), .window = 16, .sinks = 5, .capacity = 200};
      const Outcome got = run(cuda, stream, context, options, 1);
      expect_same(got, run(host, stream, context, options, 1));
      EXPECT_GT(got.choices, 0);
    }
  }
}

}  // namespace
}  // namespace topkv
