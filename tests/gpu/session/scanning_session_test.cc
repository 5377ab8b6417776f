// Sessions on a device that scans their context's codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
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

const AttentionShape small{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};
const AttentionShape wide{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 256};
const AttentionShape capped{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64, .softcap = 5};

std::vector<std::vector<float>> outs_of(const Place& place, const TokenStream& stream,
                                        Session& session, std::int64_t end, std::int64_t step) {
  Feed feed(place, stream, session.tokens(), end);
  feed.run(session, step);
  return feed.outs();
}

TEST(ScanningSession, AllKeysRetrievedEqualsDense) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 1060);
  for (const std::int64_t tokens : {1, 63, 400, 1000}) {
    const std::string index = tokens == 400 ? "codes:k=32,v=8" : "codes:k=16,v=8";
    const auto context = stream.context(tokens)->with_index(index);
    const RetrievalOptions dense{.dense_layers = 2, .capacity = 1024};
    Session all(
        context,
        {.index = index, .k = TopK::same(100000), .window = 16, .sinks = 2, .capacity = 1024},
        place.device());
    Feed feed(place, stream, tokens, tokens + 60);
    feed.run(all, 7);
    EXPECT_LE(feed.worst(dense, {tokens, tokens + 17, tokens + 59}), 1.0) << tokens;
  }
}

TEST(ScanningSession, AllKeysOfOtherShapesRetrievedEqualDense) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  AttentionShape both = wide;
  both.softcap = 5;
  for (const AttentionShape& shape : {wide, capped, both}) {
    const TokenStream stream(shape, 1060);
    const auto context = stream.context(1000)->with_index("codes");
    const RetrievalOptions dense{.dense_layers = 2, .capacity = 1024};
    Session all(
        context,
        {.index = "codes", .k = TopK::same(100000), .window = 16, .sinks = 2, .capacity = 1024},
        place.device());
    EXPECT_GT(all.stats().device_index_bytes, 0);
    Feed feed(place, stream, 1000, 1060);
    feed.run(all, 7);
    EXPECT_LE(feed.worst(dense, {1000, 1017, 1059}), 1.0)
        << shape.head_dim << " dims, softcap " << shape.softcap;
  }
}

TEST(ScanningSession, IsAsNearToDenseAsAHostSession) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  const std::vector<std::pair<std::int64_t, float>> cases = {
      {64, 0.0F}, {128, 0.0F}, {256, 0.0F}, {64, 5.0F}, {256, 5.0F}};
  for (const auto& [dim, softcap] : cases) {
    SCOPED_TRACE("softcap " + std::to_string(softcap));
    AttentionShape shape = small;
    shape.head_dim = dim;
    shape.softcap = softcap;
    TokenStream stream(shape, 6040);
    for (auto& keys : stream.k) {  // codes are for keys that vary along few directions
      for (std::size_t i = 0; i < keys.size(); ++i)
        keys[i] *= 4 * std::pow(0.95F, static_cast<float>(i % static_cast<std::size_t>(dim)));
    }
    const auto context = stream.context(6000)->with_index("codes:k=16,v=16");
    Session dense(context, {.dense_layers = 2, .capacity = 1024});
    const auto want = outs_of(host, stream, dense, 6040, 20);
    RetrievalOptions options{
        .index = "codes:k=16,v=16", .k = TopK::same(64), .window = 16, .capacity = 1024};
    Session on_device(context, options, cuda.device());
    options.k = TopK::same(32);  // of which a host lists twice as many
    Session on_host(context, options);
    options.k = TopK::same(64);
    const double from_host = distance(outs_of(host, stream, on_host, 6040, 20), want);
    const double from_device = distance(outs_of(cuda, stream, on_device, 6040, 20), want);
    EXPECT_LT(from_device, 1.25 * from_host) << dim;
    EXPECT_GT(from_device, from_host / 1.25) << dim;
    options.tail = "none";
    Session without(context, options, cuda.device());
    EXPECT_GT(distance(outs_of(cuda, stream, without, 6040, 20), want), 1.2 * from_device) << dim;
  }
}

/// What is said before there is a context.
TEST(ScanningSession, CodesTakeTheMemoryThatIsTold) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::vector<std::pair<AttentionShape, std::string>> cases = {
      {small, "codes"}, {small, "codes:k=32,v=8"}, {small, "codes:k=64,v=8"},
      {wide, "codes"},  {wide, "codes:k=32,v=16"}, {capped, "codes:k=8,v=0"},
  };
  for (const auto& [shape, index] : cases) {
    const TokenStream stream(shape, 30000);
    const RetrievalOptions options{.index = index, .window = 16, .capacity = 1024};
    Session session(stream.context(30000)->with_index(index), options, place.device());
    const auto taken = static_cast<double>(session.stats().device_index_bytes);
    EXPECT_GT(taken, 0);
    const auto told =
        static_cast<double>(device_index_bytes(shape, options, 30000, place.device()));
    EXPECT_GE(told, taken) << index << " of " << shape.head_dim << " dims";
    // Partial sums of as many blocks as any device has, not of this one's.
    EXPECT_LE(told, 1.01 * taken + (8 << 20)) << index << " of " << shape.head_dim << " dims";
  }
  EXPECT_EQ(device_index_bytes(wide, {.index = "codes:k=33"}, 30000, place.device()), 0);
  EXPECT_EQ(device_index_bytes(small, {.index = "exact"}, 30000, place.device()), 0);
  EXPECT_EQ(device_index_bytes(small, {.index = "codes", .select_by = SelectBy::group}, 30000,
                               place.device()),
            0);
  EXPECT_EQ(device_index_bytes(small, {.index = "codes"}, 30000, Device()), 0);
}

TEST(ScanningSession, FiguresAreLikeTheHosts) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  const TokenStream stream(small, 3040);
  const auto context = stream.context(3000)->with_index("codes:k=16,v=16");
  const auto figures = [&](const Place& place, const char* index, std::int64_t step) {
    Session session(context,
                    {.index = index,
                     .k = TopK::same(48),
                     .tail = "codes:k=16,v=16",
                     .window = 16,
                     .capacity = 1024},
                    place.device());
    outs_of(place, stream, session, 3040, step);
    return session.tail_figures();
  };
  for (const std::int64_t layer : {0, 1}) {
    const auto at = static_cast<std::size_t>(layer);
    const TailFigures want = figures(host, "exact", 1)[at];
    const TailFigures searched = figures(cuda, "exact", 4)[at];  // the host gives the estimate
    EXPECT_EQ(searched.heads, want.heads);
    EXPECT_NEAR(searched.mean_exact_mass(), want.mean_exact_mass(), 2e-3);
    EXPECT_NEAR(searched.mean_error(), want.mean_error(), 0.02 * want.mean_error());
    // A scan has all heads of a group attend what any of them found.
    for (const std::int64_t step : {1, 8}) {
      const TailFigures scanned = figures(cuda, "codes:k=16,v=16", step)[at];
      EXPECT_EQ(scanned.heads, want.heads);
      EXPECT_NEAR(scanned.mean_exact_mass(), want.mean_exact_mass(), 0.15);
      EXPECT_GT(scanned.mean_error(), 0.5 * want.mean_error());
      EXPECT_LT(scanned.mean_error(), 1.2 * want.mean_error());
    }
  }
}

/// Short codes lose the second half of each key, and the values have this half: most of the error
/// is what rows share.
TEST(ScanningSession, FiguresHaveTheErrorThatRowsShare) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  for (const std::int64_t dim : {64, 128, 256}) {
    AttentionShape shape = small;
    shape.head_dim = dim;
    TokenStream stream(shape, 12040);
    const std::int64_t half = dim / 2;
    for (std::size_t l = 0; l < stream.k.size(); ++l) {
      for (std::size_t i = 0; i < stream.k[l].size(); ++i) {
        stream.v[l][i] += 2;  // outputs are not small beside their errors
        if (static_cast<std::int64_t>(i) % dim < half) continue;
        stream.k[l][i] *= 0.6F;
        stream.v[l][i - static_cast<std::size_t>(half)] += 4 * stream.k[l][i];
      }
    }
    const std::string index = dim == 64 ? "codes:k=8,v=16" : "codes:k=16,v=16";
    const auto context = stream.context(12000)->with_index(index);
    Session dense(context, {.dense_layers = 2, .capacity = 1024});
    const auto exact = outs_of(host, stream, dense, 12040, 20);
    // A host lists twice as many rows.
    RetrievalOptions options{.index = index, .k = TopK::same(16), .window = 16, .capacity = 1024};
    Session on_host(context, options);
    outs_of(host, stream, on_host, 12040, 1);
    const std::vector<TailFigures> want = on_host.tail_figures();
    options.k = TopK::same(32);
    const auto expect_figures = [&](std::int64_t step) {
      Session session(context, options, cuda.device());
      const auto outs = outs_of(cuda, stream, session, 12040, step);
      const std::vector<TailFigures> figures = session.tail_figures();
      for (std::size_t l = 0; l < want.size(); ++l) {
        EXPECT_EQ(figures[l].heads, want[l].heads);
        EXPECT_NEAR(figures[l].mean_error() / want[l].mean_error(), 1, 0.2);
        const double error = distance({outs[l]}, {exact[l]});
        EXPECT_GT(figures[l].mean_error(), error / 1.7);
        EXPECT_LT(figures[l].mean_error(), error * 1.7);
      }
    };
    for (const std::int64_t step : {1, 8}) {
      SCOPED_TRACE(index + ", dims " + std::to_string(dim) + ", steps of " + std::to_string(step));
      expect_figures(step);
    }
    SCOPED_TRACE(index + ", dims " + std::to_string(dim) + ", under a rule");
    options.error = 100;  // which no error reaches
    expect_figures(1);
  }
}

TEST(ScanningSession, StepsOfAnySizeGiveTheSame) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 3400);
  const auto context = stream.context(3000)->with_index("codes");
  for (const std::int64_t k : {8, 5000}) {  // with the lists of many tokens, and of few, at a time
    const RetrievalOptions options{
        .index = "codes", .k = TopK::same(k), .window = 10, .sinks = 3, .capacity = 1024};
    Session one(context, options, place.device());
    const auto want = outs_of(place, stream, one, 3400, 1);
    for (const std::int64_t step : {7, 400}) {
      Session many(context, options, place.device());
      const DeviceMemory opened = place.device().memory();
      Feed feed(place, stream, 3000, 3400);
      const DeviceMemory fed = place.device().memory();
      feed.run(many, step);
      EXPECT_EQ(place.device().memory().used, fed.used) << "a step allocated";
      EXPECT_LT(distance(feed.outs(), want), 2e-3) << step;
      EXPECT_GE(opened.used, 0);
    }
  }
}

TEST(ScanningSession, ForkAndTruncateGoOnAsBefore) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 2100);
  Session session(stream.context(2000)->with_index("codes"),
                  {.index = "codes", .k = TopK::same(8), .window = 16, .capacity = 1024},
                  place.device());
  outs_of(place, stream, session, 2040, 1);
  const std::int64_t before = place.device().memory().used;
  Session copy = session.fork();
  EXPECT_LT(place.device().memory().used - before, 8 << 20) << "the codes were copied";
  const auto want = outs_of(place, stream, session, 2100, 4);
  EXPECT_EQ(outs_of(place, stream, copy, 2100, 4), want);
  session.truncate(40);
  EXPECT_EQ(outs_of(place, stream, session, 2100, 4), want);
}

TEST(ScanningSession, SlidingLayersAndRefusedStepsLeaveItAsItWas) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  AttentionShape shape = small;
  shape.sliding_window = {0, 12};
  const TokenStream stream(shape, 2060);
  const auto context = stream.context(2000)->with_index("codes");
  const RetrievalOptions options{
      .index = "codes", .k = TopK::same(8), .window = 16, .capacity = 1024};
  Session session(context, options, place.device());
  Session other(context, options, place.device());
  TokenStream bad = stream;
  bad.q[0][static_cast<std::size_t>(2000 * stream.q_width() + 5)] =
      std::numeric_limits<float>::infinity();
  Feed broken(place, bad, 2000, 2010);
  for (const std::int64_t tokens : {1, 9})
    EXPECT_THROW(broken.attend(session, 0, 2000, tokens), InvalidArgument);
  EXPECT_EQ(outs_of(place, stream, session, 2060, 5), outs_of(place, stream, other, 2060, 5));
}

TEST(ScanningSession, RecallIsThatOfWhatIsAttended) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 2010);
  const auto context = stream.context(2000)->with_index("codes");
  RetrievalOptions options{.index = "codes", .k = TopK::same(5000), .window = 16, .capacity = 1024};
  options.measure_recall = true;
  Session session(context, options, place.device());
  outs_of(place, stream, session, 2010, 3);
  EXPECT_GT(session.stats().exact_rows, 0);
  EXPECT_EQ(session.stats().exact_rows_found, session.stats().exact_rows);
}

/// Scans share memory: none may begin before what another left there is merged.
TEST(ScanningSession, ThreadsOverOneContextDoNotDisturbEachOther) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 6100);
  const auto context = stream.context(6000)->with_index("codes");
  const RetrievalOptions options{
      .index = "codes", .k = TopK::same(32), .window = 16, .capacity = 1024};
  Session alone(context, options, place.device());
  const auto want = outs_of(place, stream, alone, 6100, 1);
  std::vector<std::vector<std::vector<float>>> got(4);
  std::vector<std::thread> threads;
  for (auto& outs : got) {
    threads.emplace_back([&] {
      Session session(context, options, place.device());
      auto lock = place.compute().lock();
      Feed feed(place, stream, 6000, 6100);
      lock.unlock();
      feed.run(session, 1);
      lock.lock();
      outs = feed.outs();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& outs : got) EXPECT_EQ(outs, want);
}

}  // namespace
}  // namespace topkv
