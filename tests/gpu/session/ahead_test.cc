// Steps that go ahead of their lists: the caller goes on while a thread of the session attends what
// the device lists. They give what steps give that do not, whatever the caller does meanwhile.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/runtime/handles.h"
#include "tests/gpu/faults_guard.h"
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
const RetrievalOptions options{
    .index = "codes", .k = TopK::same(16), .window = 16, .sinks = 3, .capacity = 1024};

/// A context with codes, and tokens to go on with: more than the session's own lists hold rows.
struct Case {
  Place place{"cuda"};
  TokenStream stream{{.layers = 3, .q_heads = 6, .kv_heads = 2, .head_dim = 64}, first + 600};
  std::shared_ptr<const Context> context = stream.context(first)->with_index("codes");

  Session session() const { return {context, options, place.device()}; }
  Feed feed() const { return {place, stream, first, stream.total}; }
  Outs outs(Session& session, std::int64_t until) const {
    Feed feed = this->feed();
    feed.run(session, until, 1);
    return feed.outs();
  }
};

TEST(StepsAhead, GiveWhatOneThreadGives) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session ahead = of.session();
  const Outs got = of.outs(ahead, of.stream.total);
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  Session alone = of.session();
  const Outs want = of.outs(alone, of.stream.total);
  EXPECT_LT(largest_difference(got, want), 1e-3);
  for (const std::vector<float>& out : got) {
    for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  }
  EXPECT_EQ(ahead.stats().rows_retrieved, alone.stats().rows_retrieved);
  EXPECT_EQ(ahead.stats().steps, alone.stats().steps);
  EXPECT_GT(ahead.stats().search_seconds, 0);
  EXPECT_GT(ahead.step_times()[2].attend, 0);
  const auto figures = ahead.tail_figures();
  const auto figures_alone = alone.tail_figures();
  for (std::size_t l = 0; l < figures.size(); ++l) {
    EXPECT_EQ(figures[l].heads, figures_alone[l].heads);
    EXPECT_NEAR(figures[l].mean_exact_mass(), figures_alone[l].mean_exact_mass(), 1e-3);
  }
}

/// The next layer's scan begins before the lists of this one are read.
TEST(StepsAhead, LayersMayWantDifferentRows) {
  TOPKV_NEEDS_GPU();
  const Case of;
  RetrievalOptions other = options;
  other.k = {.schedule = TopK::Schedule::list, .list = {16, 300, 40}};
  Session ahead(of.context, other, of.place.device());
  const Outs got = of.outs(ahead, first + 100);
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  Session alone(of.context, other, of.place.device());
  EXPECT_LT(largest_difference(got, of.outs(alone, first + 100)), 1e-3);
  EXPECT_EQ(ahead.stats().rows_retrieved, alone.stats().rows_retrieved);
}

/// Calls of the device's driver that wait for all that it was given, which waits for the thread.
TEST(StepsAhead, GoOnWhileTheDriverWaits) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session session = of.session();
  const Outs want = of.outs(session, first + 40);
  Session other = of.session();
  Feed feed = of.feed();
  for (std::int64_t t = first; t < first + 40; ++t) {
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      feed.attend(other, layer, t, 1);
      void* memory = nullptr;
      if (t % 3 == 0) TOPKV_CUDA(cudaMalloc(&memory, 1 << 20));
      if (t % 3 == 0) TOPKV_CUDA(cudaFree(memory));
      if (t % 3 == 1) TOPKV_CUDA(cudaDeviceSynchronize());
    }
  }
  EXPECT_EQ(largest_difference(feed.outs(), want), 0);
}

TEST(StepsAhead, LateCopiesChangeNothing) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session session = of.session();
  const Outs want = of.outs(session, first + 10);
  Session other = of.session();
  const test::InjectedFaults late(500, false);
  EXPECT_EQ(largest_difference(of.outs(other, first + 10), want), 0);
}

TEST(StepsAhead, SessionsMayGoForkAndTakeBackAtAnyTime) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session session = of.session();
  const Outs want = of.outs(session, first + 30);
  Feed feed = of.feed();
  for (std::int64_t i = 0; i < 20; ++i) {
    Session gone = of.session();
    for (std::int64_t layer = 0; layer <= i % 3; ++layer) feed.attend(gone, layer, first, 1);
  }
  Session other = of.session();
  Feed again = of.feed();
  for (std::int64_t t = first; t < first + 30; ++t) {
    for (std::int64_t layer = 0; layer < 3; ++layer) again.attend(other, layer, t, 1);
    if (t % 2 == 0) other = other.fork();
    if (t % 7 != 3) continue;
    other.truncate(t - first - 2);
    for (std::int64_t back = t - 2; back <= t; ++back) {
      for (std::int64_t layer = 0; layer < 3; ++layer) again.attend(other, layer, back, 1);
    }
  }
  EXPECT_EQ(largest_difference(again.outs(), want), 0);
}

/// Nothing of it is written, not even where queries and results share their place.
TEST(StepsAhead, ARefusedStepLeavesTheOneBeforeAndItself) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session session = of.session();
  const Outs want = of.outs(session, first + 20);
  const std::int64_t kv = of.stream.kv_width();
  const std::int64_t width = of.stream.q_width();
  TokenStream bad = of.stream;
  for (const std::int64_t layer : {1, 2}) {
    const auto l = static_cast<std::size_t>(layer);
    bad.k[l][static_cast<std::size_t>((first + 4) * kv)] = std::numeric_limits<float>::infinity();
    bad.v[l][static_cast<std::size_t>((first + 5) * kv)] = std::numeric_limits<float>::infinity();
    bad.q[l][static_cast<std::size_t>((first + 7) * width)] =
        std::numeric_limits<float>::quiet_NaN();
  }
  Session other = of.session();
  Feed feed = of.feed();
  Feed broken(of.place, bad, first, bad.total);
  for (std::int64_t t = first; t < first + 20; ++t) {
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      if (layer > 0 && (t == first + 4 || t == first + 5 || t == first + 7)) {
        AttentionStep step = broken.step(layer, t, 1);
        step.out = const_cast<float*>(step.q);
        EXPECT_THROW(other.attend(step), InvalidArgument);
        const std::vector<float> q = of.place.get(step.q, width);
        const auto given = bad.q[static_cast<std::size_t>(layer)].begin() + t * width;
        EXPECT_TRUE(std::equal(q.begin() + 1, q.end(), given + 1)) << t;  // one is not a number
      }
      feed.attend(other, layer, t, 1);
    }
  }
  EXPECT_EQ(largest_difference(feed.outs(), want), 0);
  EXPECT_EQ(other.stats().rows_retrieved, session.stats().rows_retrieved);
  EXPECT_EQ(other.stats().steps, session.stats().steps);
  const auto figures = other.tail_figures();
  const auto figures_wanted = session.tail_figures();
  for (std::size_t l = 0; l < figures.size(); ++l) {
    EXPECT_EQ(figures[l].heads, figures_wanted[l].heads);
    EXPECT_NEAR(figures[l].mean_error(), figures_wanted[l].mean_error(), 1e-6);
  }
}

/// Who reads a session's figures may do so in several threads.
TEST(StepsAhead, FiguresAreReadByManyThreads) {
  TOPKV_NEEDS_GPU();
  const Case of;
  Session session = of.session();
  Feed feed = of.feed();
  for (std::int64_t t = first; t < first + 50; ++t) {
    for (std::int64_t layer = 0; layer < 3; ++layer) feed.attend(session, layer, t, 1);
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i)
      readers.emplace_back([&] { EXPECT_EQ(session.stats().steps, 3 * (t - first + 1)); });
    for (std::thread& reader : readers) reader.join();
  }
  Session again = of.session();
  of.outs(again, first + 50);
  EXPECT_EQ(session.stats().rows_retrieved, again.stats().rows_retrieved);
}

}  // namespace
}  // namespace topkv
