// The order of a session's copies and work among streams: late copies change nothing, and would be
// seen if a wait were missing.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/gpu/faults_guard.h"
#include "tests/gpu/session_feed.h"
#include "tests/gpu/user_stream.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

RetrievalOptions fetching(std::int64_t dense_layers) {
  return {.k = TopK::same(16),
          .dense_layers = dense_layers,
          .window = 16,
          .capacity = 1024,
          .attend_on = AttendOn::device};
}

/// Largest error of ten steps whose copies are late.
double worst_of_late_steps(const RetrievalOptions& options, unsigned seed, bool drop_waits) {
  const Place place("cuda");
  const TokenStream stream(shape, 310, seed);
  Session session(stream.context(300), options, place.device());
  Feed feed(place, stream, 300, 310);
  {
    const test::InjectedFaults late(test::UserStream::delay_us, drop_waits);
    feed.run(session, 1);
  }
  return feed.worst(options, {300, 301, 305, 309});
}

TEST(CudaSessionOrder, LateFetchedRowsChangeNothing) {
  TOPKV_NEEDS_GPU();
  EXPECT_LE(worst_of_late_steps(fetching(0), 1, false), 1.0);
}

TEST(CudaSessionOrder, LatePartialsAndTilesChangeNothing) {
  TOPKV_NEEDS_GPU();
  RetrievalOptions options = fetching(1);
  options.attend_on = AttendOn::host;
  EXPECT_LE(worst_of_late_steps(options, 1, false), 1.0);
}

TEST(CudaSessionOrder, WithoutItsWaitsLateFetchedRowsAreSeen) {
  TOPKV_NEEDS_GPU();
  // Other tokens than above: memory may still hold those.
  EXPECT_GT(worst_of_late_steps(fetching(0), 50, true), 1.0)
      << "the tests above could not see a missing wait";
}

/// Largest error of tokens 200 and on whose tensors are made late on the caller's stream.
double worst_on_a_stream(std::int64_t tokens, const RetrievalOptions& options, bool drop_waits) {
  constexpr std::int64_t first = 200;
  const Place place("cuda");
  const TokenStream stream(shape, first + tokens);
  Session session(stream.context(first), options, place.device());
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
    for (const AttendOn attend_on : {AttendOn::host, AttendOn::device}) {
      RetrievalOptions options = fetching(0);
      options.attend_on = attend_on;
      EXPECT_LE(worst_on_a_stream(tokens, options, false), 1.0) << tokens;
    }
  }
}

TEST(CudaSessionOrder, WithoutWaitsTensorsOfAnotherStreamComeTooLate) {
  TOPKV_NEEDS_GPU();
  EXPECT_GT(worst_on_a_stream(7, fetching(0), true), 1.0)
      << "the test above could not see a missing wait";
}

}  // namespace
}  // namespace topkv
