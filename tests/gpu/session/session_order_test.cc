// The order of a session's copies and work among streams: late copies change nothing, and would be
// seen if a wait were missing.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/gpu/faults_guard.h"
#include "tests/gpu/user_stream.h"
#include "tests/support/session_feed.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

// Searched by the host, and by the device: pages of one key are exact search.
constexpr const char* exact = "exact";
constexpr const char* chosen = "quest:page=1";

RetrievalOptions with_dense_layers(std::int64_t count, const char* index) {
  return {
      .index = index, .k = TopK::same(16), .dense_layers = count, .window = 16, .capacity = 1024};
}

TEST(CudaSessionOrder, LatePartialsTilesAndChoicesChangeNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape, 310);
  for (const char* index : {exact, chosen}) {
    const RetrievalOptions options = with_dense_layers(1, index);
    Session session(stream.context(300)->with_index(index), options, place.device());
    EXPECT_EQ(session.stats().device_index_bytes > 0, index == chosen);
    Feed feed(place, stream, 300, 310);
    {
      const test::InjectedFaults late(test::UserStream::delay_us, false);
      feed.run(session, 1);
    }
    EXPECT_LE(feed.worst(options, {300, 301, 305, 309}), 1.0) << index;
  }
}

TEST(CudaSessionOrder, LateRowsOfTurnsChangeNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape, 1700);
  for (const char* dtype : {"bf16", "q8"}) {
    for (const Prefill mode : {Prefill::sparse, Prefill::dense}) {
      RetrievalOptions options = with_dense_layers(0, exact);
      options.turns = PrefillAttention{.mode = mode, .window = 64, .keys = 256, .least_keys = 0};
      const auto context = stream.context(900, KvDType::parse(dtype));
      const auto run = [&](Feed& feed) {
        Session session(context, options, place.device());
        feed.run(session, 1200, 300);
        feed.run(session, 1203, 1);
        feed.run(session, 1700, 497);
      };
      Feed late(place, stream, 900, 1700), usual(place, stream, 900, 1700);
      {
        const test::InjectedFaults delayed(test::UserStream::delay_us, false);
        run(late);
      }
      run(usual);
      EXPECT_EQ(late.outs(), usual.outs()) << dtype << ", " << name_of(mode);
    }
  }
}

/// Choices that come late are waited for by the host: of an earlier one it would take other rows.
TEST(CudaSessionOrder, WithoutItsWaitAChoiceComesTooLate) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape, 310);
  const RetrievalOptions options = with_dense_layers(0, chosen);
  for (const bool drop_wait : {false, true}) {
    Session session(stream.context(300)->with_index(chosen), options, place.device());
    Feed feed(place, stream, 300, 310);
    feed.run(session, 302, 1);  // what lies where choices come is one from now on
    {
      const test::LateChoices late(20'000, drop_wait);
      feed.run(session, 1);
    }
    EXPECT_EQ(feed.worst(options, {303, 305, 309}) > 1.0, drop_wait);
  }
}

/// Largest error of tokens 200 and on whose tensors are made late on the caller's stream.
double worst_on_a_stream(std::int64_t tokens, bool drop_waits, std::int64_t chunk_len = 0,
                         const char* index = exact) {
  const RetrievalOptions options = with_dense_layers(0, index);
  constexpr std::int64_t first = 200;
  const Place place("cuda");
  AttentionShape by_chunks = shape;
  by_chunks.chunk_len = chunk_len;
  const TokenStream stream(by_chunks, first + tokens);
  Session session(stream.context(first)->with_index(index), options, place.device());
  return test::UserStream(place, stream, first)
      .worst([&](const AttentionStep& step) { session.attend(step); },
             [&](std::int64_t layer, std::int64_t p, std::int64_t head) {
               const auto found = test::found_rows(stream, options, layer, p, head);
               return [&options, p, found](std::int64_t x) {
                 return x < options.sinks || x > p - options.window || found.contains(x);
               };
             },
             drop_waits);
}

TEST(CudaSessionOrder, TensorsOfAnotherStreamAreWaitedForAndResultsWait) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 7, 300}) {
    EXPECT_LE(worst_on_a_stream(tokens, false), 1.0) << tokens;
  }
}

TEST(CudaSessionOrder, ChoicesWaitForTensorsOfAnotherStream) {
  TOPKV_NEEDS_GPU();
  EXPECT_LE(worst_on_a_stream(1, false, 0, chosen), 1.0);
  EXPECT_LE(worst_on_a_stream(1, false, 60, chosen), 1.0);
  EXPECT_GT(worst_on_a_stream(1, true, 0, chosen), 1.0) << "a missing wait would not be seen";
}

TEST(CudaSessionOrder, PassesOfChunksWaitAndResultsWaitForTheirMerge) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 7, 300}) {
    EXPECT_LE(worst_on_a_stream(tokens, false, 60), 1.0) << tokens;
  }
}

TEST(CudaSessionOrder, WithoutWaitsTensorsOfAnotherStreamComeTooLate) {
  TOPKV_NEEDS_GPU();
  EXPECT_GT(worst_on_a_stream(7, true), 1.0) << "the test above could not see a missing wait";
}

}  // namespace
}  // namespace topkv
