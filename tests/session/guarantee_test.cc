// RetrievalOptions::guarantee in sessions: with all rows a step is dense attention in float64, the
// bound covers, and equal steps give equal results, whatever beside them.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/needs_gpu.h"
#include "tests/support/session_feed.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using test::expect_step;
using test::Stream;

const AttentionShape guarantee_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};
constexpr std::int64_t guarantee_tokens = 3000;
constexpr std::int64_t guarantee_heads = 12;  // layers x q_heads

RetrievalOptions guaranteed(double epsilon, double delta, const char* index = "exact") {
  return {.index = index,
          .k = TopK::same(32),
          .guarantee = Guarantee{epsilon, delta},
          .window = 16,
          .capacity = 100};
}

/// A stream whose values have a mean, so that outputs are not all noise.
Stream stream_with_mean(AttentionShape of = guarantee_shape,
                        std::int64_t total = guarantee_tokens + 60) {
  Stream stream(std::move(of), total);
  for (auto& layer : stream.v)
    for (float& x : layer) x = reference::as_bf16(x + 3);
  return stream;
}

TEST(SessionGuarantee, OfAllRowsIsDense) {
  for (const float softcap : {0.0F, 4.0F}) {
    AttentionShape of = guarantee_shape;
    of.softcap = softcap;
    const Stream stream(of, guarantee_tokens + 20);
    auto context = stream.prefill(guarantee_tokens);
    for (const char* index : {"codes", "codes:v=0", "quest:page=4", "none"}) {
      context = context->with_index(index);
    }
    for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
      for (const char* index : {"exact", "codes", "codes:v=0", "quest:page=4", "none"}) {
        RetrievalOptions one = guaranteed(1e-9, 0.01, index);
        one.select_by = by;
        Session session(context, one);
        EXPECT_EQ(session.options().tail, "none");
        const auto outs = stream.feed(session, guarantee_tokens + 20, 7);
        EXPECT_EQ(session.stats().went_dense, 20 * guarantee_heads) << index;
        RetrievalOptions dense = one;
        dense.dense_layers = 2;
        for (std::int64_t l = 0; l < 2; ++l) {
          for (const std::int64_t p :
               {guarantee_tokens, guarantee_tokens + 8, guarantee_tokens + 19})
            expect_step(stream, l, p, dense, &outs[l][(p - guarantee_tokens) * stream.q_width()]);
        }
        // Own rows are all attended, but not counted.
        std::int64_t rows = 0;
        for (std::int64_t p = guarantee_tokens; p < guarantee_tokens + 20; ++p)
          rows += std::min(p - 16 + 1, guarantee_tokens) - one.sinks;
        EXPECT_EQ(session.stats().rows_retrieved, rows * guarantee_heads) << index;
      }
    }
  }
}

TEST(SessionGuarantee, Covers) {
  const Stream stream = stream_with_mean();
  auto context = stream.prefill(guarantee_tokens)->with_index("codes");
  Session dense(context, {.dense_layers = 2, .capacity = 100});
  const auto want = stream.feed(dense, guarantee_tokens + 60, 4);
  for (const char* index : {"exact", "codes"}) {
    for (const double delta : {0.05, 0.4}) {
      constexpr double epsilon = 0.2;
      Session session(context, guaranteed(epsilon, delta, index));
      const auto got = stream.feed(session, guarantee_tokens + 60, 4);
      std::int64_t off = 0;
      std::int64_t all = 0;
      for (std::size_t l = 0; l < want.size(); ++l) {
        for (std::size_t at = 0; at < want[l].size(); at += 16, ++all) {
          double square = 0;
          double size = 0;
          for (std::size_t i = at; i < at + 16; ++i) {
            square += std::pow(got[l][i] - want[l][i], 2);
            size += std::pow(want[l][i], 2);
          }
          off += square > epsilon * epsilon * size ? 1 : 0;
        }
      }
      const auto pairs = static_cast<double>(all);
      EXPECT_LE(static_cast<double>(off), pairs * delta + 4 * std::sqrt(pairs * delta)) << index;
      const SessionStats& stats = session.stats();
      EXPECT_EQ(stats.rows_retrieved, stats.rows_sampled + all * 32) << index;
      EXPECT_GT(stats.rows_sampled, all * 160);
      EXPECT_LT(stats.rows_sampled, all * guarantee_tokens / 2);
      EXPECT_LT(stats.went_dense, all / 10);
    }
  }
}

TEST(SessionGuarantee, EqualStepsGiveEqualResults) {
  const Stream stream = stream_with_mean();
  const auto context = stream.prefill(guarantee_tokens)->with_index("codes");
  for (const char* index : {"exact", "codes"}) {
    const RetrievalOptions one = guaranteed(0.1, 0.1, index);
    Session alone(context, one);
    const auto want = stream.feed(alone, guarantee_tokens + 60, 1);
    Session several(context, one);
    EXPECT_EQ(stream.feed(several, guarantee_tokens + 60, 6), want) << index;
    {
      const oneapi::tbb::global_control single(oneapi::tbb::global_control::max_allowed_parallelism,
                                               1);
      Session session(context, one);
      EXPECT_EQ(stream.feed(session, guarantee_tokens + 60, 6), want) << index;
    }
    Session first(context, one);
    stream.feed(first, guarantee_tokens + 20, 2);
    Session forked = first.fork();
    stream.feed(first, guarantee_tokens + 40, 4);
    first.truncate(20);
    for (Session* session : {&first, &forked}) {
      const auto rest = stream.feed(*session, guarantee_tokens + 60, 5);
      for (std::size_t l = 0; l < rest.size(); ++l) {
        EXPECT_TRUE(std::ranges::equal(
            rest[l], std::span(want[l]).subspan(static_cast<std::size_t>(20 * stream.q_width()))))
            << index;
      }
    }
  }
}

/// Beside sessions of the same options, and of others.
TEST(SessionGuarantee, NeighboursInABatchChangeNothing) {
  const Stream stream = stream_with_mean();
  const auto context = stream.prefill(guarantee_tokens);
  const RetrievalOptions one = guaranteed(0.1, 0.1);
  Session alone(context, one);
  std::vector<float> want(static_cast<std::size_t>(3 * stream.q_width()));
  std::vector<Session> sessions;
  sessions.emplace_back(context, RetrievalOptions{.k = TopK::same(32), .window = 16});
  sessions.emplace_back(context, one);
  sessions.emplace_back(context, one);
  const std::vector<Session*> together = {&sessions[0], &sessions[1], &sessions[2]};
  const auto repeated = [&](const std::vector<float>& x, std::int64_t width) {
    std::vector<float> all;
    for (int i = 0; i < 3; ++i)
      all.insert(all.end(), x.begin() + guarantee_tokens * width,
                 x.begin() + (guarantee_tokens + 3) * width);
    return all;
  };
  for (std::int64_t l = 0; l < 2; ++l) {
    alone.attend(stream.step(l, guarantee_tokens, 3, want.data()));
    const auto q = repeated(stream.q[l], stream.q_width());
    const auto k = repeated(stream.k[l], stream.kv_width());
    const auto v = repeated(stream.v[l], stream.kv_width());
    std::vector<float> out(q.size());
    Session::attend_together(
        together,
        {.layer = l, .tokens = 3, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()});
    for (std::size_t s = 1; s < 3; ++s) {
      EXPECT_TRUE(std::ranges::equal(want, std::span(out).subspan(s * want.size(), want.size())));
    }
  }
}

TEST(SessionGuarantee, DenseAndSlidingLayersSampleNothing) {
  AttentionShape of = guarantee_shape;
  of.layers = 3;
  of.sliding_window = {0, 24, 0};
  const Stream stream = stream_with_mean(of);
  RetrievalOptions one = guaranteed(0.1, 0.1);
  one.dense_layers = 1;
  Session session(stream.prefill(guarantee_tokens), one);
  stream.feed(session, guarantee_tokens + 1, 1);
  Session last(stream.prefill(guarantee_tokens), one);
  std::vector<float> out(static_cast<std::size_t>(stream.q_width()));
  for (std::int64_t l = 0; l < 2; ++l) {
    last.attend(stream.step(l, guarantee_tokens, 1, out.data()));
    EXPECT_EQ(last.stats().rows_sampled, 0) << l;
  }
  last.attend(stream.step(2, guarantee_tokens, 1, out.data()));
  EXPECT_GE(last.stats().rows_sampled, 6 * 160);
  EXPECT_EQ(session.stats().rows_sampled, last.stats().rows_sampled);
}

TEST(SessionGuarantee, OptionsThatDoNotGoTogetherAreRefused) {
  const Stream stream(guarantee_shape, 200);
  const auto context = stream.prefill(150)->with_index("codes");
  const auto said = [&](auto change, const std::shared_ptr<const Context>& over) {
    RetrievalOptions one = guaranteed(0.1, 0.05);
    change(one);
    try {
      Session(over, one);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -0.1, 1.0, 2.0, infinity, std::nan("")}) {
    for (const Guarantee bound : {Guarantee{bad, 0.05}, Guarantee{0.1, bad}}) {
      EXPECT_NE(said([&](auto& o) { o.guarantee = bound; }, context)
                    .find("both must be above 0 and below 1"),
                std::string::npos);
    }
  }
  const auto refused = [&](auto change, const char* what) {
    const std::string message = said(change, context);
    EXPECT_NE(message.find(std::string("guarantee does not go with ") + what), std::string::npos)
        << message;
  };
  refused([](auto& o) { o.tail = "codes", o.mass = 0.9; }, "mass");
  refused([](auto& o) { o.tail = "codes", o.error = 0.1; }, "error");
  refused([](auto& o) { o.tail = "codes"; }, "tail 'codes'");
  EXPECT_EQ(said([](auto& o) { o.tail = "none"; }, context), "accepted");
  EXPECT_EQ(said([](auto& o) { o.index = "codes"; }, context), "accepted");
  AttentionShape chunks = guarantee_shape;
  chunks.chunk_len = 51;
  EXPECT_NE(said([](auto&) {}, ContextBuilder(chunks, {.capacity = 1}).freeze())
                .find("guarantee does not go with dual chunk attention"),
            std::string::npos);
  AttentionShape latents = guarantee_shape;
  latents.keys_are_values = true;
  EXPECT_NE(said([](auto&) {}, ContextBuilder(latents, {.capacity = 1}).freeze())
                .find("guarantee does not go with keys that are values"),
            std::string::npos);
}

TEST(SessionGuarantee, IsRefusedOnCuda) {
  TOPKV_NEEDS_GPU();
  const Stream stream(guarantee_shape, 200);
  try {
    Session(stream.prefill(150), guaranteed(0.1, 0.05), Device::open("cuda"));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("guarantee does not go with a CUDA device"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace topkv
