// Dual chunk attention of prefills and sessions against float64, which takes one softmax over all
// rows and the query of each row's chunk: on the host and on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/session/own_codes.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

AttentionShape by_chunks(std::int64_t chunk_len, float softcap = 0) {
  return {.layers = 2,
          .q_heads = 6,
          .kv_heads = 2,
          .head_dim = 64,
          .softcap = softcap,
          .chunk_len = chunk_len};
}

/// The same tokens, which attend all rows with q.
TokenStream without_chunks(TokenStream stream) {
  stream.shape.chunk_len = 0;
  stream.q_next.clear();
  stream.q_far.clear();
  return stream;
}

/// Keys that vary along few directions, as codes are for, and values that go with them.
TokenStream coded_stream(const AttentionShape& shape, std::int64_t tokens) {
  TokenStream stream(shape, tokens);
  auto k = stream.k;
  auto v = stream.v;
  for (std::size_t l = 0; l < k.size(); ++l) {
    for (std::size_t i = 0; i < k[l].size(); ++i)
      k[l][i] = reference::as_bf16(k[l][i] * 3 * std::pow(0.9F, static_cast<float>(i % 64)));
    for (std::size_t i = 0; i < v[l].size(); ++i) v[l][i] = reference::as_bf16(v[l][i] + k[l][i]);
  }
  stream.replace_rows(std::move(k), std::move(v));
  return stream;
}

class Chunks : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, Chunks, testing::ValuesIn(::test::devices));

struct Prefilled {
  std::int64_t total, chunk_len, step;
  PrefillAttention attention;
  std::int64_t stride = 1;  // of the positions that are looked at
};

TEST_P(Chunks, PrefillsEqualFloat64WhereverStepsAreCut) {
  const Place place(GetParam());
  constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  const PrefillAttention narrow{.mode = Prefill::window, .window = 30, .sinks = 4};
  const PrefillAttention wide{.mode = Prefill::window, .window = 150, .sinks = 70};
  for (const Prefilled& c : std::vector<Prefilled>{{260, 64, 1, {}, 7},
                                                   {260, 64, 33, {}},
                                                   {260, 64, 260, {}},
                                                   {260, 1, 50, {}, 7},
                                                   {260, longest, 50, {}, 7},
                                                   {260, 64, 33, narrow},
                                                   {260, 64, 260, wide},
                                                   {5000, 2048, 1024, {}, 331},
                                                   {5000, 1500, 1024, {}, 331}}) {
    const TokenStream stream(by_chunks(c.chunk_len), c.total);
    ContextBuilder builder(stream.shape, {.capacity = c.total, .attention = c.attention},
                           place.device());
    Feed feed(place, stream, 0, c.total);
    for (std::int64_t t = 0; t < c.total; t += c.step) {
      for (std::int64_t l = 0; l < stream.shape.layers; ++l)
        builder.attend(feed.step(l, t, std::min(c.step, c.total - t)));
    }
    builder.synchronize();
    const auto outs = feed.outs();
    double worst = 0;
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      for (std::int64_t p = 0; p < c.total; p += c.stride) {
        for (std::int64_t h = 0; h < stream.shape.q_heads; ++h) {
          const float* out =
              &outs[static_cast<std::size_t>(l)]
                   [static_cast<std::size_t>(p * stream.q_width() + h * stream.shape.head_dim)];
          const bool all = c.attention.mode == Prefill::dense;
          worst = std::max(
              worst, stream.error(l, p, h, place.is_cuda(), out, nullptr, [&](std::int64_t x) {
                return all || x < c.attention.sinks || x > p - c.attention.window;
              }));
        }
      }
    }
    EXPECT_LE(worst, 1.0) << c.total << " tokens, chunks of " << c.chunk_len << ", " << c.step
                          << " at a time, window " << c.attention.window;
    // The rows are those that were given.
    EXPECT_EQ(builder.freeze()->tokens(), c.total);
  }
}

struct ChunkCase {
  const char* name;
  std::int64_t chunk_len;
  RetrievalOptions options;
  float softcap = 0;
};

TEST_P(Chunks, SessionsEqualFloat64) {
  const Place place(GetParam());
  const TopK few = TopK::same(8);
  const TopK all = TopK::same(1 << 20);
  const std::vector<ChunkCase> cases = {
      {"retrieving", 100, {.k = few, .window = 20, .sinks = 4}},
      {"soft capped", 100, {.k = few, .window = 20, .sinks = 4}, 3.0F},
      {"by group", 100, {.k = few, .select_by = SelectBy::group, .window = 20, .sinks = 4}},
      {"first layer dense", 100, {.k = few, .dense_layers = 1, .window = 20, .sinks = 4}},
      {"all retrieved", 100, {.k = all, .window = 20, .sinks = 4}},
      {"chunks shorter than the window", 7, {.k = few, .window = 40, .sinks = 10}},
      {"chunks of one token", 1, {.k = few, .window = 20, .sinks = 4}},
      {"sinks over several chunks", 30, {.k = few, .window = 20, .sinks = 70}},
      {"two chunks", 300, {.k = few, .window = 20, .sinks = 4}},
      {"no chunk is full", 1000, {.k = few, .window = 20, .sinks = 4}}};
  for (const ChunkCase& c : cases) {
    const TokenStream stream(by_chunks(c.chunk_len, c.softcap), 560);
    const auto context = stream.context(430);
    for (const std::int64_t step : {1, 9, 130}) {
      Session session(context, c.options, place.device());
      Feed feed(place, stream, 430, 560);
      feed.run(session, step);
      EXPECT_LE(feed.worst(c.options, {430, 431, 450, 499, 500, 501, 529, 530, 559}), 1.0)
          << c.name << ", steps of " << step;
      EXPECT_EQ(session.stats().steps, 2 * 130);
    }
  }
}

TEST_P(Chunks, SessionsBeginWithoutAContextAsWithOne) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(50), 330);
  const RetrievalOptions options{.k = TopK::same(6), .window = 12, .sinks = 2};
  Session session(stream.context(1), options, place.device());
  Feed feed(place, stream, 1, 330);
  feed.run(session, 13);
  EXPECT_LE(feed.worst(options, {1, 20, 49, 50, 51, 99, 100, 149, 150, 251, 329}), 1.0);
}

TEST_P(Chunks, ReadingStepsMeetTheChunksOfTheirPositions) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(100), 700);
  const RetrievalOptions options{.k = TopK::same(8), .window = 20, .sinks = 4};
  Session session(stream.context(430), options, place.device());
  for (const std::int64_t tokens : {1, 100, 250}) {  // the last are of four chunks
    Feed feed(place, stream, 430, 700);
    for (std::int64_t l = 0; l < 2; ++l) session.attend(feed.reading(l, 430, tokens));
    std::vector<std::int64_t> positions;
    for (const std::int64_t p : {430, 450, 499, 500, 529, 531, 599, 600, 679})
      if (p < 430 + tokens) positions.push_back(p);
    EXPECT_LE(feed.worst(options, positions, 430), 1.0) << tokens;
  }
  EXPECT_EQ(session.tokens(), 430);
  Feed feed(place, stream, 430, 560);
  feed.run(session, 9);
  EXPECT_LE(feed.worst(options, {430, 501, 559}), 1.0) << "after reading";
}

// What a reading step saw last must not narrow what a step of the first chunk sees.
TEST_P(Chunks, AReadingStepOfLaterChunksLeavesNothingToOneOfTheFirst) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(100), 200);
  const RetrievalOptions options{.k = TopK::same(8), .window = 20, .sinks = 4};
  Session session(stream.context(50), options, place.device());
  Feed read(place, stream, 50, 200);
  for (std::int64_t l = 0; l < 2; ++l) session.attend(read.reading(l, 50, 120));
  EXPECT_LE(read.worst(options, {50, 99, 100, 169}, 50), 1.0);
  Feed feed(place, stream, 50, 200);
  feed.run(session, 1);
  EXPECT_LE(feed.worst(options, {50, 51, 99, 100, 199}), 1.0) << "after reading";
}

TEST_P(Chunks, AllRowsRetrievedEqualDenseWithEveryIndex) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(500), 2160);
  const RetrievalOptions dense{.dense_layers = 2};
  for (const char* index : {"exact", "hnsw", "faiss:HNSW16", "faiss:IVF16,SQ8", "faiss:Flat",
                            "codes:k=16,v=8", "codes:k=16,v=0"}) {
    const auto context = stream.context(2100)->with_index(index);
    for (const std::int64_t step : {1, 30}) {
      Session session(context, {.index = index, .k = TopK::same(100000), .window = 16, .sinks = 3},
                      place.device());
      Feed feed(place, stream, 2100, 2160);
      feed.run(session, step);
      EXPECT_LE(feed.worst(dense, {2100, 2117, 2159}), 1.0) << index << ", steps of " << step;
      // A token makes a pass over each chunk that it meets, and is one step.
      EXPECT_EQ(session.stats().steps, 2 * 60);
      EXPECT_EQ(session.stats().retrieving_steps, 2 * 60);
    }
  }
}

/// With a tail, rules that ask for all rows give all.
TEST_P(Chunks, RulesThatAskForAllRowsEqualDense) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(500), 2130);
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    const auto context = stream.context(2100)->with_index("codes:k=16,v=8");
    Session session(context,
                    {.index = index,
                     .k = TopK::same(8),
                     .tail = "codes:k=16,v=8",
                     .error = 1e-12,
                     .window = 16,
                     .sinks = 3},
                    place.device());
    Feed feed(place, stream, 2100, 2130);
    feed.run(session, 5);
    EXPECT_LE(feed.worst({.dense_layers = 2}, {2100, 2104, 2129}), 1.0) << index;
    EXPECT_GT(session.stats().went_dense, 0);
  }
}

/// What codes stand for is met by the query of its chunk: with another the result would be as far
/// off as with none.
TEST_P(Chunks, TailsAreNearToDenseAttention) {
  const Place place(GetParam());
  const TokenStream stream = coded_stream(by_chunks(700), 3060);
  const TokenStream plain = without_chunks(stream);
  const auto far_off = [&](const TokenStream& of, const char* index, const char* tail,
                           std::int64_t step) {
    const auto outs = [&](const RetrievalOptions& options) {
      Session session(of.context(3000)->with_index("codes:k=16,v=8"), options, place.device());
      Feed feed(place, of, 3000, 3060);
      feed.run(session, step);
      return feed.outs();
    };
    return distance(
        outs({.index = index, .k = TopK::same(32), .tail = tail, .window = 16, .sinks = 3}),
        outs({.dense_layers = 2}));
  };
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    for (const std::int64_t step : {1, 20}) {
      const double with = far_off(stream, index, "codes:k=16,v=8", step);
      EXPECT_LT(with, 1.25 * far_off(plain, index, "codes:k=16,v=8", step))
          << index << ": no worse than with one query";
      EXPECT_LT(with, 0.5 * far_off(stream, index, "none", step)) << index;
    }
  }
}

/// The session's own rows, once they are laid out in codes, are met by the query of their chunk.
TEST_P(Chunks, OwnRowsInCodesAreAllMet) {
  const Place place(GetParam());
  const std::int64_t on_host = std::exchange(least_coded_on_host, least_coded_on_device);
  const TokenStream stream(by_chunks(900), 4000);
  Session session(stream.context(500)->with_index("codes:k=16,v=8"),
                  {.index = "codes:k=16,v=8", .k = TopK::same(100000), .window = 16, .sinks = 3},
                  place.device());
  Feed feed(place, stream, 500, 4000);
  feed.run(session, 3960, 256);
  feed.run(session, 3980, 5);
  feed.run(session, 4000, 1);
  EXPECT_GE(session.stats().coded_tokens, 2048);
  EXPECT_LE(feed.worst({.dense_layers = 2}, {3960, 3964, 3979, 3980, 3999}), 1.0);
  least_coded_on_host = on_host;
}

/// A device that goes ahead chooses the rows of one token among all chunks at once, by one
/// threshold: no more than without chunks, though queries differ in length by chunk.
TEST_P(Chunks, ATokenHasNoMoreRowsThanWithoutChunks) {
  const Place place(GetParam());
  if (!place.is_cuda()) GTEST_SKIP() << "on a host each pass chooses its rows";
  TokenStream stream = coded_stream(by_chunks(700), 3060);
  for (auto& layer : stream.q_far)
    for (float& x : layer) x *= 1.5F;
  for (auto& layer : stream.q_next)
    for (float& x : layer) x *= 0.25F;
  constexpr std::int64_t k = 32;
  for (const char* tail : {"codes:k=16,v=8", "none"}) {
    Session session(
        stream.context(3000)->with_index("codes:k=16,v=8"),
        {.index = "codes:k=16,v=8", .k = TopK::same(k), .tail = tail, .window = 16, .sinks = 3},
        place.device());
    Feed feed(place, stream, 3000, 3060);
    feed.run(session, 1);
    const std::int64_t group = 3;
    const std::int64_t most = 2 * 60 * 2 * group * k * group;  // layers, tokens, KV heads
    EXPECT_LE(session.stats().rows_retrieved, most) << tail;
    EXPECT_GT(session.stats().rows_retrieved, most / 10) << tail;
  }
}

TEST_P(Chunks, BelowOneChunkItIsPlainAttention) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(600), 600);
  const TokenStream plain = without_chunks(stream);
  const auto outs = [&](const TokenStream& of) {
    ContextBuilder builder(of.shape, {.capacity = 540}, place.device());
    Feed first(place, of, 0, 540);
    for (std::int64_t l = 0; l < 2; ++l) builder.attend(first.step(l, 0, 540));
    builder.synchronize();
    auto all = first.outs();
    const auto context = builder.freeze()->with_index("codes:k=16,v=8");
    for (const char* index : {"exact", "codes:k=16,v=8"}) {
      Session session(context, {.index = index, .k = TopK::same(16), .window = 16, .sinks = 3},
                      place.device());
      Feed feed(place, of, 540, 600);
      feed.run(session, 4);
      for (auto& out : feed.outs()) all.push_back(std::move(out));
    }
    return all;
  };
  if (place.is_cuda()) {
    EXPECT_LT(distance(outs(stream), outs(plain)), 1e-5);  // scans list rows in any order
  } else {
    EXPECT_EQ(outs(stream), outs(plain));
  }
}

/// Where the same query meets both, it may be given as one.
TEST_P(Chunks, OneQueryForAllEarlierChunksIsMetOnce) {
  const Place place(GetParam());
  TokenStream stream(by_chunks(100), 560);
  stream.q_next = stream.q_far;
  const auto context = stream.context(430);
  const RetrievalOptions options{.k = TopK::same(1 << 20), .window = 20, .sinks = 4};
  Session session(context, options, place.device());
  Feed feed(place, stream, 430, 560);
  for (std::int64_t t = 430; t < 560; t += 13) {
    for (std::int64_t l = 0; l < 2; ++l) {
      AttentionStep step = feed.step(l, t, 13);
      step.q_next = step.q_far;
      session.attend(step);
    }
  }
  EXPECT_LE(feed.worst(options, {430, 499, 500, 559}), 1.0);
  ContextBuilder builder(stream.shape, {.capacity = 560}, place.device());
  Feed whole(place, stream, 0, 560);
  for (std::int64_t l = 0; l < 2; ++l) {
    AttentionStep step = whole.step(l, 0, 560);
    step.q_next = step.q_far;
    builder.attend(step);
  }
  builder.synchronize();
  EXPECT_LE(whole.worst({.dense_layers = 2}, {0, 99, 100, 250, 559}), 1.0);
}

TEST_P(Chunks, OutMayBeQItself) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(100), 560);
  const auto context = stream.context(430);
  for (const std::int64_t tokens : {1, 130}) {
    Session apart(context, {.k = TopK::same(8), .window = 20}, place.device());
    Session in_place(context, {.k = TopK::same(8), .window = 20}, place.device());
    Feed want(place, stream, 430, 560);
    Feed got(place, stream, 430, 560);
    for (std::int64_t l = 0; l < 2; ++l) {
      apart.attend(want.step(l, 430, tokens));
      AttentionStep step = got.step(l, 430, tokens);
      step.out = const_cast<float*>(step.q);
      in_place.attend(step);
      EXPECT_EQ(place.get(step.out, tokens * stream.q_width()),
                place.get(want.step(l, 430, tokens).out, tokens * stream.q_width()));
    }
  }
}

TEST_P(Chunks, TruncatedAndForkedSessionsGoOnAsIfNothingHadHappened) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(60), 560);
  const TokenStream rejected(by_chunks(60), 560, 77);
  const auto context = stream.context(430)->with_index("codes:k=16,v=8");
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    const RetrievalOptions options{.index = index, .k = TopK::same(8), .window = 16};
    for (const std::int64_t kept : {0, 3, 80}) {
      Session plain(context, options, place.device());
      Session session(context, options, place.device());
      for (Session* each : {&plain, &session})
        Feed(place, stream, 430, 560).run(*each, 430 + kept, 4);
      Feed(place, rejected, 430, 560).run(session, 430 + kept + 45, 5);
      session.truncate(kept);
      Session forked = session.fork();
      const auto rest = [&](Session& of) {
        Feed feed(place, stream, 430 + kept, 560);
        feed.run(of, 7);
        return feed.outs();
      };
      const auto want = rest(plain);
      EXPECT_LT(distance(rest(session), want), 1e-4) << index << ", " << kept << " kept";
      EXPECT_LT(distance(rest(forked), want), 1e-4) << index << ", " << kept << " kept";
    }
  }
}

TEST_P(Chunks, SessionsTogetherGiveWhatEachGivesAlone) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(60), 560);
  const auto context = stream.context(430)->with_index("codes:k=16,v=8");
  const std::vector<std::int64_t> ends = {430, 477, 500};  // before a chunk's end, in two others
  constexpr std::int64_t tokens = 5;
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    std::vector<Session> alone, together;
    std::vector<Session*> all;
    for (const std::int64_t end : ends) {
      for (std::vector<Session>* sessions : {&alone, &together}) {
        sessions->emplace_back(context,
                               RetrievalOptions{.index = index, .k = TopK::same(8), .window = 16},
                               place.device());
        Feed(place, stream, 430, 560).run(sessions->back(), end, 6);
      }
    }
    for (Session& session : together) all.push_back(&session);
    for (std::int64_t l = 0; l < 2; ++l) {
      std::vector<float> q, q_next, q_far, k, v, want;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const std::int64_t t = ends[i];
        Feed feed(place, stream, t, t + tokens);
        feed.attend(alone[i], l, t, tokens);
        const std::vector<float> out = feed.outs()[static_cast<std::size_t>(l)];
        want.insert(want.end(), out.begin(), out.end());
        const auto add = [&](std::vector<float>& to, const std::vector<std::vector<float>>& from,
                             std::int64_t width) {
          const auto begin = from[static_cast<std::size_t>(l)].begin();
          to.insert(to.end(), begin + t * width, begin + (t + tokens) * width);
        };
        add(q, stream.q, stream.q_width());
        add(q_next, stream.q_next, stream.q_width());
        add(q_far, stream.q_far, stream.q_width());
        add(k, stream.k, stream.kv_width());
        add(v, stream.v, stream.kv_width());
      }
      const Buffer at[] = {place.put(q),    place.put(k),      place.put(v),
                           place.put(want), place.put(q_next), place.put(q_far)};
      AttentionStep step{.layer = l,
                         .tokens = tokens,
                         .q = at[0].floats(),
                         .k = at[1].floats(),
                         .v = at[2].floats(),
                         .out = at[3].floats()};
      step.q_next = at[4].floats();
      step.q_far = at[5].floats();
      Session::attend_together(all, step);
      EXPECT_LT(distance({place.get(at[3].floats(), std::ssize(want))}, {want}), 1e-4)
          << index << ", layer " << l;
    }
  }
}

TEST_P(Chunks, StepsThatLackAQueryAreRefusedAndChangeNothing) {
  const Place place(GetParam());
  const TokenStream stream(by_chunks(100), 460);
  const auto context = stream.context(195);
  Session session(context, {.window = 20}, place.device());
  Feed feed(place, stream, 195, 460);
  const auto refused = [&](const AttentionStep& step, const char* what) {
    try {
      session.attend(step);
      ADD_FAILURE() << "no error for " << what;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
    EXPECT_EQ(session.tokens(), 195);
  };
  AttentionStep step = feed.step(0, 195, 3);
  step.q_far = nullptr;
  session.attend(step);  // of the second chunk: there is none before the one before
  session.truncate(0);
  step.q_next = nullptr;
  refused(step, "q_next is null");
  step = feed.step(0, 195, 6);
  step.q_far = nullptr;
  refused(step, "q_far is null");
  step = feed.step(0, 195, 6);
  step.out = const_cast<float*>(step.q_far);
  refused(step, "out overlaps q_far");
  if (!place.is_cuda()) {  // (which takes what it cannot round for the caller's to look at)
    std::vector<float> bad(static_cast<std::size_t>(6 * stream.q_width()), 0.5F);
    bad.back() = std::numeric_limits<float>::infinity();
    step = feed.step(0, 195, 6);
    step.q_next = bad.data();
    refused(step, "not finite");
  }
  for (std::int64_t l = 0; l < 2; ++l) session.attend(feed.step(l, 195, 6));
}

TEST(ChunkShapes, ThatCannotBeAreRefused) {
  const auto refused = [](const AttentionShape& shape) {
    EXPECT_THROW(ContextBuilder(shape, {.capacity = 4}), InvalidArgument);
  };
  refused(by_chunks(-1));
  AttentionShape sliding = by_chunks(64);
  sliding.sliding_window = {0, 16};
  refused(sliding);
  const Place place("cpu");
  const TokenStream stream(by_chunks(64), 200);
  Feed feed(place, stream, 0, 200);
  ContextBuilder builder(stream.shape, {.capacity = 200});
  EXPECT_THROW(builder.attend(feed.reading(0, 0, 10)), InvalidArgument) << "a shard";
  AttentionStep lacking = feed.step(0, 0, 65);
  lacking.q_next = nullptr;
  EXPECT_THROW(builder.attend(lacking), InvalidArgument);
  ContextBuilder plain(without_chunks(stream).shape, {.capacity = 200});
  EXPECT_THROW(plain.attend(feed.step(0, 0, 10)), InvalidArgument) << "queries of chunks";
}

}  // namespace
}  // namespace topkv
