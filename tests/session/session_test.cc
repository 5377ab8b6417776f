// Sessions over a frozen context against float64: the union of sinks, window and retrieved rows
// under one softmax; and the laws that every index must keep.
#include "topkv/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <ostream>
#include <string_view>
#include <thread>

#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::expect_step;
using test::Stream;
using test::tolerance;

const AttentionShape small{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};

struct Case {
  std::int64_t context, k, window, sinks, dense_layers;
  SelectBy select_by;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "context " << c.context << ", k " << c.k << ", window " << c.window << ", sinks "
       << c.sinks << ", dense layers " << c.dense_layers
       << (c.select_by == SelectBy::group ? ", by group" : ", by query head");
}

class SessionSteps : public testing::TestWithParam<Case> {};

TEST_P(SessionSteps, EqualFloat64OneByOneAndInBlocks) {
  const Case c = GetParam();
  const std::int64_t total = c.context + 60;
  const Stream stream(small, total);
  const RetrievalOptions options{.k = TopK::same(c.k),
                                 .select_by = c.select_by,
                                 .dense_layers = c.dense_layers,
                                 .window = c.window,
                                 .sinks = c.sinks};
  const auto context = stream.prefill(c.context);
  for (const std::int64_t step : {1, 7, 60}) {
    Session session(context, options);
    const auto outs = stream.feed(session, total, step);
    EXPECT_EQ(session.tokens(), total);
    for (std::int64_t l = 0; l < small.layers; ++l) {
      for (const std::int64_t t : {0, 1, 30, 59}) {
        expect_step(stream, l, c.context + t, options, &outs[l][t * stream.q_width()]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, SessionSteps,
    testing::Values(Case{300, 8, 20, 4, 0, SelectBy::query_head},    // own tokens leave the window
                    Case{300, 8, 20, 4, 0, SelectBy::group},         // heads share rows
                    Case{300, 8, 20, 4, 1, SelectBy::query_head},    // first layer dense
                    Case{300, 5, 1, 0, 0, SelectBy::query_head},     // window of one, no sinks
                    Case{300, 8, 1000, 4, 0, SelectBy::query_head},  // window over everything
                    Case{300, 8, 20, 310, 0, SelectBy::query_head},  // sinks into the session's own
                    Case{0, 3, 10, 2, 0, SelectBy::query_head},      // no context at all
                    Case{1, 1, 1, 1, 0, SelectBy::query_head}));

TEST(Session, AllKeysRetrievedEqualsDenseForEveryIndex) {
  const Stream stream(small, 420);
  const auto exact = stream.prefill(400);
  for (const char* spec : {"exact", "faiss:Flat", "faiss:IVF16,Flat", "faiss:HNSW16",
                           "ivf:size=4,share=1", "hnsw:M=16,efc=100,ef=800"}) {
    const auto context = exact->with_index(spec);
    Session dense(context, {.index = spec, .dense_layers = 2});
    Session all(context, {.index = spec, .k = TopK::same(100000), .window = 16, .sinks = 2});
    const auto want = stream.feed(dense, 420, 1);
    const auto got = stream.feed(all, 420, 1);
    for (std::size_t l = 0; l < want.size(); ++l) {
      for (std::size_t i = 0; i < want[l].size(); ++i)
        ASSERT_NEAR(got[l][i], want[l][i], tolerance) << spec;
    }
  }
}

TEST(Session, ForkGoesOnExactlyAsTheOriginal) {
  const Stream stream(small, 260);
  Session session(stream.prefill(200), {.k = TopK::same(8), .window = 16});
  stream.feed(session, 230, 1);
  Session copy = session.fork();
  EXPECT_EQ(copy.own_tokens(), 30);
  const auto a = stream.feed(session, 260, 1);
  EXPECT_EQ(copy.tokens(), 230) << "the original's tokens reached the fork";
  const auto b = stream.feed(copy, 260, 1);
  EXPECT_EQ(a, b);
}

TEST(Session, ResultsAreTheSameBitsWhateverOtherSessionsRun) {
  const Stream stream(small, 1060);
  const auto context = stream.prefill(1000)->with_index("hnsw:M=8,efc=40,ef=64");
  for (const char* spec : {"exact", "hnsw:M=8,efc=40,ef=64"}) {
    const RetrievalOptions options{.index = spec, .k = TopK::same(8), .window = 16};
    Session alone(context, options);
    const auto want = stream.feed(alone, 1060, 3);
    std::vector<std::vector<std::vector<float>>> got(4);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < got.size(); ++i) {
        threads.emplace_back([&, i] {
          Session session(context, options);
          got[i] = stream.feed(session, 1060, 3);
        });
      }
    }
    for (const auto& outs : got) EXPECT_EQ(outs, want) << spec;
  }
}

TEST(Session, RecallIsOneForExactSearchAndLowForAPoorGraph) {
  const Stream stream(small, 3030);
  const auto context = stream.prefill(3000)->with_index("hnsw:M=2,efc=4,ef=1");
  std::vector<std::vector<float>> outs[2];
  for (const char* spec : {"exact", "hnsw:M=2,efc=4,ef=1"}) {
    RetrievalOptions options{
        .index = spec, .k = TopK::same(8), .window = 16, .measure_recall = true};
    Session session(context, options);
    outs[0] = stream.feed(session, 3030, 10);
    const SessionStats& stats = session.stats();
    EXPECT_EQ(stats.exact_rows, 30 * 2 * 6 * 8) << "tokens x layers x query heads x k";
    const bool exact = std::string_view(spec) == "exact";
    EXPECT_EQ(stats.exact_rows_found == stats.exact_rows, exact);
    EXPECT_GT(stats.exact_rows_found, 0);
    options.measure_recall = false;
    Session plain(context, options);
    outs[1] = stream.feed(plain, 3030, 10);
    EXPECT_EQ(outs[0], outs[1]) << "measuring changed results";
    EXPECT_EQ(plain.stats().exact_rows, 0);
  }
}

TEST(Session, SlidingLayersSeeTheirWindowOnly) {
  AttentionShape shape = small;
  shape.sliding_window = {0, 12};
  const Stream stream(shape, 330);
  Session session(stream.prefill(300), {.k = TopK::same(8), .window = 20, .sinks = 4});
  const auto outs = stream.feed(session, 330, 5);
  for (const std::int64_t t : {0, 5, 29}) {
    const std::int64_t p = 300 + t;
    for (std::int64_t h = 0; h < shape.q_heads; ++h) {
      const auto want = reference::attend(
          stream.rows(1, h / 3, p + 1), &stream.q[1][p * stream.q_width() + h * 16],
          shape.softmax_scale(), [&](std::int64_t x) { return x > p - 12; });
      for (std::int64_t j = 0; j < 16; ++j) {
        EXPECT_NEAR(outs[1][t * stream.q_width() + h * 16 + j], want.out[j], tolerance);
      }
    }
  }
}

TEST(Session, RefusedStepLeavesTheSessionAsItWas) {
  const Stream stream(small, 220);
  const auto context = stream.prefill(200);
  Session clean(context, {.window = 16});
  const auto want = stream.feed(clean, 220, 20);
  Session session(context, {.window = 16});
  std::vector<float> out(static_cast<std::size_t>(stream.q_width()));
  std::vector<float> bad(stream.q[0].begin(), stream.q[0].begin() + stream.q_width());
  bad[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(session.attend(0, bad.data(), stream.k[0].data(), stream.v[0].data(), out.data()),
               InvalidArgument);
  EXPECT_THROW(session.attend(0, stream.q[0].data(), bad.data(), stream.v[0].data(), out.data()),
               InvalidArgument);
  EXPECT_THROW(session.attend(0, stream.q[0].data(), stream.k[0].data(), bad.data(), out.data()),
               InvalidArgument);
  EXPECT_THROW(
      session.attend(2, stream.q[0].data(), stream.k[0].data(), stream.v[0].data(), out.data()),
      InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 0);
  EXPECT_EQ(stream.feed(session, 220, 20), want);
}

TEST(Session, LayersOutOfTurnAndNullPointersAreRefused) {
  const Stream stream(small, 220);
  Session session(stream.prefill(200), {.window = 16});
  const float* q = stream.q[0].data();
  const float* k = stream.k[0].data();
  std::vector<float> out(static_cast<std::size_t>(stream.q_width()));
  EXPECT_THROW(session.attend(1, q, k, k, out.data()), InvalidArgument) << "layer 1 before layer 0";
  session.attend(0, q, k, k, out.data());
  EXPECT_THROW(session.attend(0, q, k, k, out.data()), InvalidArgument) << "layer 1 was left out";
  session.attend(1, q, k, k, out.data());
  EXPECT_THROW(session.attend(0, nullptr, k, k, out.data()), InvalidArgument);
  EXPECT_THROW(session.attend(0, q, k, k, nullptr), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 1);
}

TEST(Session, FullSessionIsRefusedClearly) {
  const Stream stream(small, 30);
  Session session(stream.prefill(10), {.window = 4, .capacity = 5});
  EXPECT_THROW(stream.feed(session, 30, 1), InvalidArgument);
}

TEST(Session, OptionsThatCannotWorkAreRefused) {
  const Stream stream(small, 20);
  const auto context = stream.prefill(20);
  EXPECT_THROW(Session(context, {.index = "hnsw"}), InvalidArgument);
  EXPECT_THROW(Session(context, {.k = TopK::same(0)}), InvalidArgument);
  EXPECT_THROW(Session(context, {.k = TopK::per_layer({1, 2, 3})}), InvalidArgument);
  EXPECT_THROW(Session(context, {.window = 0}), InvalidArgument);
  EXPECT_THROW(Session(context, {.sinks = -1}), InvalidArgument);
  EXPECT_THROW(Session(std::shared_ptr<const Context>()), InvalidArgument);
}

TEST(Context, LayersOfDifferentLengthCannotBeFrozen) {
  const Stream stream(small, 20);
  ContextBuilder builder(small, {.capacity = 20});
  builder.append(0, TensorView::tokens_first(stream.k[0].data(), DType::f32, 20, 2, 16),
                 TensorView::tokens_first(stream.v[0].data(), DType::f32, 20, 2, 16));
  EXPECT_THROW(builder.freeze(), InvalidArgument);
}

TEST(Context, FrozenBuilderRefusesEverything) {
  const Stream stream(small, 20);
  ContextBuilder builder(small, {.capacity = 20});
  const auto context = builder.freeze();
  EXPECT_EQ(context->tokens(), 0);
  EXPECT_THROW(builder.freeze(), InvalidArgument);
  EXPECT_THROW(builder.append(0, TensorView::tokens_first(stream.k[0].data(), DType::f32, 1, 2, 16),
                              TensorView::tokens_first(stream.v[0].data(), DType::f32, 1, 2, 16)),
               InvalidArgument);
}

TEST(Context, AddingAnIndexLeavesTheOriginalAsItWas) {
  const Stream stream(small, 200);
  const auto context = stream.prefill(200);
  const auto more = context->with_index("hnsw:M=8,efc=40");
  EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
  EXPECT_EQ(more->indices(), (std::vector<std::string>{"exact", "hnsw:M=8,efc=40,ef=0"}));
  EXPECT_EQ(context->rows(1, 1).keys.data, more->rows(1, 1).keys.data) << "rows were copied";
  EXPECT_THROW(context->with_index("nonsense"), InvalidArgument);
}

TEST(TopK, SumsUpToTheLargestNumberAreMetExactly) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t sum : {most, most - 1, most / 2 + 3, std::int64_t{1} << 53}) {
    for (const std::int64_t layers : {1, 2, 3, 28, 80}) {
      for (const char* name : {"uniform:", "linear:"}) {
        const auto ks = TopK::parse(name + std::to_string(sum)).resolve(layers);
        std::uint64_t total = 0;  // of numbers that are positive and so cannot wrap around
        for (const std::int64_t k : ks) {
          EXPECT_GE(k, 1);
          total += static_cast<std::uint64_t>(k);
        }
        EXPECT_EQ(total, static_cast<std::uint64_t>(sum)) << name << sum << ", " << layers;
        EXPECT_TRUE(std::is_sorted(ks.begin(), ks.end()));
      }
    }
  }
}

TEST(Session, AsManyRowsAsThereCanBeAreAllRows) {
  const Stream stream(small, 120);
  const auto context = stream.prefill(100);
  const RetrievalOptions all{.dense_layers = 2, .window = 5};
  Session dense(context, all);
  const auto expected = stream.feed(dense, 120, 1);
  for (const char* k :
       {"9223372036854775807", "uniform:9223372036854775807", "linear:9223372036854775807"}) {
    for (const SelectBy select_by : {SelectBy::query_head, SelectBy::group}) {
      Session session(context, {.k = TopK::parse(k), .select_by = select_by, .window = 5});
      const auto outs = stream.feed(session, 120, 1);
      for (std::size_t l = 0; l < outs.size(); ++l) {
        for (std::size_t i = 0; i < outs[l].size(); ++i) {
          ASSERT_NEAR(outs[l][i], expected[l][i], tolerance) << k;
        }
      }
    }
  }
}

TEST(TopK, SchedulesMeetTheirSumAndRise) {
  EXPECT_EQ(TopK::parse("64").resolve(3), (std::vector<std::int64_t>{64, 64, 64}));
  EXPECT_EQ(TopK::parse("5,6,7").resolve(3), (std::vector<std::int64_t>{5, 6, 7}));
  for (const std::int64_t sum : {8, 9, 100, 511, 4096}) {
    const auto linear = TopK::linear_sum(sum).resolve(8);
    const auto uniform = TopK::parse("uniform:" + std::to_string(sum)).resolve(8);
    EXPECT_EQ(std::accumulate(linear.begin(), linear.end(), std::int64_t{0}), sum);
    EXPECT_EQ(std::accumulate(uniform.begin(), uniform.end(), std::int64_t{0}), sum);
    EXPECT_TRUE(std::is_sorted(linear.begin(), linear.end()));
    EXPECT_LE(*std::max_element(uniform.begin(), uniform.end()),
              *std::min_element(uniform.begin(), uniform.end()) + 1);
  }
  for (const char* text :
       {"0", "-1", "", "5,", "x", "linear:", "linear:x", "5;6", "99999999999999999999"}) {
    EXPECT_THROW(TopK::parse(text), InvalidArgument) << text;
  }
  EXPECT_THROW(TopK::linear_sum(7).resolve(8), InvalidArgument);
}

}  // namespace
}  // namespace topkv
