// SessionStats: steps, and rows for each query head, as means that leave no step out.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/stream.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Stream;

constexpr std::int64_t stats_tokens = 200;

AttentionShape stats_shape(std::vector<std::int64_t> sliding = {}) {
  return {.layers = 4,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .sliding_window = std::move(sliding)};
}

/// Counts of a session after `more` tokens, `step` at a time.
SessionStats counts(const AttentionShape& shape, const RetrievalOptions& options,
                    std::int64_t more = 6, std::int64_t step = 1,
                    std::int64_t context = stats_tokens) {
  const Stream stream(shape, context + more);
  Session session(stream.prefill(context)->ready_for(options), options);
  stream.feed(session, context + more, step);
  return session.stats();
}

TEST(SessionStats, RowsPerHeadAreKInEveryLayer) {
  for (const SelectBy select_by : {SelectBy::query_head, SelectBy::group}) {
    const SessionStats stats = counts(
        stats_shape(), {.k = TopK::same(5), .select_by = select_by, .window = 8, .sinks = 2});
    EXPECT_EQ(stats.steps, 6 * 4);
    EXPECT_EQ(stats.retrieving_steps, 6 * 4);
    EXPECT_EQ(stats.rows_retrieved, 6 * 4 * 4 * 5);
    EXPECT_EQ(stats.rows_per_head(4), 5);
    EXPECT_EQ(stats.rows_per_retrieving_head(4), 5);
  }
}

TEST(SessionStats, DenseAndSlidingLayersCountInTheMeanOfAllLayersAlone) {
  const RetrievalOptions options{.k = TopK::same(6), .dense_layers = 1, .window = 8, .sinks = 2};
  const SessionStats dense = counts(stats_shape(), options);
  EXPECT_EQ(dense.steps, 6 * 4);
  EXPECT_EQ(dense.retrieving_steps, 6 * 3);
  EXPECT_EQ(dense.rows_per_head(4), 4.5);
  EXPECT_EQ(dense.rows_per_retrieving_head(4), 6);
  // Layer 0 is dense, layers 1 and 2 slide: layer 3 retrieves.
  const SessionStats sliding = counts(stats_shape({0, 8, 8, 0}), options, 6, 3);
  EXPECT_EQ(sliding.steps, 6 * 4);
  EXPECT_EQ(sliding.retrieving_steps, 6);
  EXPECT_EQ(sliding.rows_per_head(4), 1.5);
  EXPECT_EQ(sliding.rows_per_retrieving_head(4), 6);
}

TEST(SessionStats, StepsThatFindNoRowCountAsRetrieving) {
  // The window holds all rows.
  const SessionStats stats = counts(stats_shape(), {.k = TopK::same(5), .window = 1000});
  EXPECT_EQ(stats.retrieving_steps, 6 * 4);
  EXPECT_EQ(stats.rows_per_head(4), 0);
  EXPECT_EQ(stats.rows_per_retrieving_head(4), 0);
}

TEST(SessionStats, RowsPerHeadAreZeroWhereNothingWasCounted) {
  EXPECT_EQ(SessionStats{}.rows_per_head(4), 0);
  EXPECT_EQ(SessionStats{}.rows_per_retrieving_head(4), 0);
  const SessionStats all_dense = counts(stats_shape(), {.dense_layers = 4});
  EXPECT_EQ(all_dense.steps, 6 * 4);
  EXPECT_EQ(all_dense.retrieving_steps, 0);
  EXPECT_EQ(all_dense.rows_per_head(4), 0);
  EXPECT_EQ(all_dense.rows_per_retrieving_head(4), 0);
}

TEST(SessionStats, StepsOfSeveralTokensAndSessionsCountEachTokenOnce) {
  const RetrievalOptions options{.k = TopK::same(5), .dense_layers = 1, .window = 8, .sinks = 2};
  const SessionStats one = counts(stats_shape(), options, 6, 1);
  const SessionStats six = counts(stats_shape(), options, 6, 6);
  EXPECT_EQ(six.steps, one.steps);
  EXPECT_EQ(six.retrieving_steps, one.retrieving_steps);
  EXPECT_EQ(six.rows_retrieved, one.rows_retrieved);

  // Sessions that step together.
  const Stream stream(stats_shape(), stats_tokens + 1);
  const auto context = stream.prefill(stats_tokens);
  Session a(context, options), b(context, options);
  Session* const both[] = {&a, &b};
  const auto twice = [](std::vector<float> row) {
    const std::vector<float> copy = row;
    row.insert(row.end(), copy.begin(), copy.end());
    return row;
  };
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const auto last = [&](const std::vector<float>& rows, std::int64_t width) {
      return twice({rows.end() - width, rows.end()});
    };
    const auto l = static_cast<std::size_t>(layer);
    const auto q = last(stream.q[l], stream.q_width());
    const auto k = last(stream.k[l], stream.kv_width()), v = last(stream.v[l], stream.kv_width());
    std::vector<float> out(q.size());
    Session::attend_together(both, {.layer = layer,
                                    .tokens = 1,
                                    .q = q.data(),
                                    .k = k.data(),
                                    .v = v.data(),
                                    .out = out.data()});
  }
  for (const Session* session : both) {
    EXPECT_EQ(session->stats().steps, 4);
    EXPECT_EQ(session->stats().retrieving_steps, 3);
    EXPECT_EQ(session->stats().rows_per_retrieving_head(4), 5);
  }
  EXPECT_EQ(a.fork().stats().retrieving_steps, 3);
}

TEST(SessionStats, ScannedStepsAreCounted) {
  const RetrievalOptions options{
      .index = "codes:k=16,v=8", .k = TopK::same(5), .dense_layers = 1, .window = 8, .sinks = 2};
  const SessionStats stats = counts(stats_shape(), options, 6, 1, 3000);
  EXPECT_EQ(stats.steps, 6 * 4);
  EXPECT_EQ(stats.retrieving_steps, 6 * 3);
  EXPECT_GT(stats.rows_retrieved, 0);
  EXPECT_EQ(stats.rows_per_retrieving_head(4),
            static_cast<double>(stats.rows_retrieved) / (6 * 3 * 4));
}

}  // namespace
}  // namespace topkv
