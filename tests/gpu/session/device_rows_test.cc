// Rows of a context in the device's memory, which it attends itself in steps that go ahead: the
// results are those of the host's attention over the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/session/session_outs.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Feed;
using test::largest_difference;
using test::Outs;
using test::Place;
using test::TokenStream;

constexpr std::int64_t first = 3000;
constexpr std::int64_t all_memory = std::int64_t{1} << 30;

RetrievalOptions options_of(std::int64_t device_rows) {
  return {.index = "codes",
          .k = TopK::same(16),
          .window = 16,
          .sinks = 3,
          .capacity = 1024,
          .device_rows = device_rows};
}

struct RowsCase {
  std::string name;
  AttentionShape shape;
  KvDType dtype = {};
};

AttentionShape shape_of(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                        float softcap = 0, std::int64_t chunk_len = 0) {
  return {.layers = 3,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .softcap = softcap,
          .chunk_len = chunk_len};
}

class DeviceRows : public testing::TestWithParam<RowsCase> {
 protected:
  void SetUp() override { TOPKV_NEEDS_GPU(); }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, DeviceRows,
    testing::Values(RowsCase{"bf16", shape_of(6, 2, 64)},
                    RowsCase{"q8", shape_of(14, 2, 128), DType::q8},
                    RowsCase{"q4", shape_of(6, 2, 64), DType::q4},
                    RowsCase{"q8_and_q4", shape_of(8, 1, 96), KvDType(DType::q8, DType::q4)},
                    RowsCase{"wide", shape_of(4, 2, 256), DType::q8},
                    RowsCase{"widest", shape_of(4, 2, 512)},
                    RowsCase{"capped", shape_of(6, 2, 64, 5.0F), DType::q8},
                    RowsCase{"chunks", shape_of(6, 2, 64, 0, 700)},
                    RowsCase{"chunks_q8", shape_of(6, 2, 64, 0, 1250), DType::q8}),
    [](const auto& one) { return one.param.name; });

/// Own rows leave the window on the way, so that the host has lists, too.
TEST_P(DeviceRows, GiveWhatTheHostGives) {
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, first + 200);
  const auto context = stream.context(first, GetParam().dtype)->with_index("codes");
  const auto outs = [&](Session& session) {
    Feed feed(place, stream, first, stream.total);
    feed.run(session, 1);
    return feed.outs();
  };
  Session host(context, options_of(0), place.device());
  const Outs want = outs(host);
  const SessionStats by_host = host.stats();
  EXPECT_EQ(by_host.device_row_bytes, 0);
  std::int64_t whole = 0;
  for (const double share : {1.0, 0.5}) {  // of the rows: all layers, and the first one
    const std::int64_t bytes =
        share == 1.0 ? all_memory : static_cast<std::int64_t>(static_cast<double>(whole) * share);
    Session device(context, options_of(bytes), place.device());
    EXPECT_LT(largest_difference(outs(device), want), 1e-3) << share;
    const SessionStats stats = device.stats();
    EXPECT_EQ(stats.rows_retrieved, by_host.rows_retrieved) << share;
    EXPECT_EQ(stats.steps, by_host.steps);
    EXPECT_GT(stats.device_row_bytes, 0);
    EXPECT_LE(stats.device_row_bytes, bytes);
    if (share == 1.0) whole = stats.device_row_bytes;
    if (share < 1.0) {
      EXPECT_LT(stats.device_row_bytes, whole);
    }
    const auto figures = device.tail_figures();
    const auto figures_host = host.tail_figures();
    for (std::size_t l = 0; l < figures.size(); ++l) {
      EXPECT_EQ(figures[l].heads, figures_host[l].heads);
      EXPECT_NEAR(figures[l].mean_exact_mass(), figures_host[l].mean_exact_mass(), 1e-3);
    }
  }
}

TEST_P(DeviceRows, AllRowsRetrievedEqualDense) {
  if (GetParam().dtype != KvDType()) GTEST_SKIP() << "float64 knows rows in bf16";
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, first + 40);
  const auto context = stream.context(first)->with_index("codes");
  RetrievalOptions options = options_of(all_memory);
  options.k = TopK::same(100000);
  Session session(context, options, place.device());
  Feed feed(place, stream, first, stream.total);
  feed.run(session, 1);
  EXPECT_LE(feed.worst({.dense_layers = 3}, {first, first + 17, first + 39}), 1.0);
  EXPECT_GT(session.stats().device_row_bytes, 0);
}

/// The same rows in the same places: the same bits, in whichever order the scan lists them.
TEST_P(DeviceRows, GiveTheSameBitsAgain) {
  const Place place("cuda");
  const TokenStream stream(GetParam().shape, first + 20);
  const auto context = stream.context(first, GetParam().dtype)->with_index("codes");
  const auto outs = [&] {
    Session session(context, options_of(all_memory), place.device());
    Feed feed(place, stream, first, stream.total);
    feed.run(session, 1);
    return feed.outs();
  };
  const Outs once = outs();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outs(), once);
}

TEST(DeviceRows, OtherStepsAndForksFindTheirRowsOnTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape_of(6, 2, 64), first + 120);
  const auto context = stream.context(first)->with_index("codes");
  const auto outs = [&](std::int64_t bytes) {
    Session session(context, options_of(bytes), place.device());
    Feed feed(place, stream, first, stream.total);
    feed.run(session, first + 30, 1);
    feed.run(session, first + 60, 7);
    Session fork = session.fork();
    EXPECT_EQ(fork.stats().rows_retrieved, session.stats().rows_retrieved);
    EXPECT_EQ(fork.stats().device_row_bytes, session.stats().device_row_bytes);
    feed.run(fork, 1);
    EXPECT_GT(fork.stats().rows_retrieved, session.stats().rows_retrieved);
    return feed.outs();
  };
  EXPECT_LT(largest_difference(outs(all_memory), outs(0)), 1e-3);
}

TEST(DeviceRows, SessionsShareThemAndTheLastOneGivesThemBack) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape_of(6, 2, 64), first + 1);
  const auto context = stream.context(first)->with_index("codes");
  const auto used = [&] { return place.device().memory().used; };
  Session before(context, options_of(0), place.device());
  const std::int64_t without = used();
  {
    Session one(context, options_of(all_memory), place.device());
    const std::int64_t with = used();
    const std::int64_t rows = one.stats().device_row_bytes;
    EXPECT_GE(with - without, rows);
    Session two(context, options_of(all_memory), place.device());
    EXPECT_LT(used() - with, rows);
  }
  EXPECT_LT(used() - without, std::int64_t{8} << 20);  // workspaces that are kept
}

TEST(DeviceRows, AreRefusedWithoutAScanAndWithoutMemory) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(shape_of(6, 2, 64), first + 1);
  const auto context = stream.context(first)->with_index("codes");
  const auto refused = [&](RetrievalOptions options) {
    try {
      const Session session(context, options, place.device());
    } catch (const InvalidArgument& error) {
      return std::string(error.what()).find("device_rows") != std::string::npos;
    }
    return false;
  };
  RetrievalOptions options = options_of(all_memory);
  options.host_search = true;
  EXPECT_TRUE(refused(options));
  options = options_of(all_memory);
  options.error = 0.1;
  EXPECT_TRUE(refused(options));
  EXPECT_TRUE(refused(options_of(-1)));
  // Rows that may take less than a layer's stay on the host.
  const Session none(context, options_of(1), place.device());
  EXPECT_EQ(none.stats().device_row_bytes, 0);
}

}  // namespace
}  // namespace topkv
