// Sessions against float64, on a device and (what they are to agree with) on the host: sinks,
// window and retrieved rows under one softmax.
#include "topkv/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>

#include "tests/support/session_feed.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

const AttentionShape small{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

AttentionShape stack(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                     std::vector<std::int64_t> sliding = {}) {
  return {.layers = 2,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .sliding_window = std::move(sliding)};
}

AttentionShape capped(AttentionShape shape, float softcap) {
  shape.softcap = softcap;
  return shape;
}

struct Case {
  const char* name;
  std::int64_t context, k, window, sinks;
  std::int64_t dense_layers = 0;
  SelectBy select_by = SelectBy::query_head;
  AttentionShape shape = small;
};

std::vector<Case> cases() {
  constexpr auto by_group = SelectBy::group;
  constexpr auto by_head = SelectBy::query_head;
  return {{"own_tokens_leave_the_window", 300, 8, 20, 4},
          {"heads_share_rows", 300, 8, 20, 4, 0, by_group},
          {"first_layer_dense", 300, 8, 20, 4, 1},
          {"all_layers_dense", 300, 8, 20, 4, 2},
          {"window_of_one_without_sinks", 300, 5, 1, 0},
          {"window_over_everything", 300, 8, 1000, 4},
          {"sinks_into_own_tokens", 300, 8, 20, 310},
          {"no_context", 0, 3, 10, 2},
          {"no_context_dense", 0, 3, 10, 2, 2},
          {"context_of_one", 1, 1, 1, 1},
          {"context_below_window_and_sinks", 23, 8, 20, 4},
          {"context_of_window_and_sinks", 24, 8, 20, 4},
          {"context_above_window_and_sinks", 25, 8, 20, 4},
          {"more_rows_than_there_are", 100, 5000, 16, 2},
          {"sliding_layer_last", 300, 8, 20, 4, 0, by_head, stack(6, 2, 64, {0, 12})},
          {"sliding_layer_first", 300, 8, 20, 4, 2, by_head, stack(6, 2, 64, {12, 0})},
          {"one_query_head_per_kv_head", 200, 8, 20, 4, 0, by_head, stack(2, 2, 128)},
          {"group_of_eight", 200, 8, 20, 4, 0, by_head, stack(8, 1, 128)},
          {"group_of_eight_shares_rows", 200, 8, 20, 4, 0, by_group, stack(16, 2, 64)},
          {"head_dim_80", 200, 8, 20, 4, 1, by_head, stack(2, 1, 80)},
          {"head_dim_96", 200, 8, 20, 4, 1, by_head, stack(2, 1, 96)},
          {"head_dim_256", 200, 8, 20, 4, 1, by_head, stack(2, 1, 256)},
          {"head_dim_512", 200, 8, 20, 4, 1, by_head, stack(2, 1, 512)},
          {"head_dim_512_dense", 200, 8, 20, 4, 2, by_head, stack(16, 2, 512)},
          {"soft_capped", 300, 8, 20, 4, 0, by_head, capped(small, 1.5F)},
          {"soft_capped_dense_first", 200, 8, 20, 4, 1, by_group, capped(stack(8, 1, 128), 5)}};
}

struct Parameter {
  std::string device;
  Case c;
};

void PrintTo(const Parameter& p, std::ostream* out) { *out << p.c.name << " on " << p.device; }

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const Case& c : cases()) {
    for (const std::string& device : test::devices) all.push_back({device, c});
  }
  return all;
}

RetrievalOptions options_of(const Parameter& p) {
  return {.k = TopK::same(p.c.k),
          .select_by = p.c.select_by,
          .dense_layers = p.c.dense_layers,
          .window = p.c.window,
          .sinks = p.c.sinks,
          .capacity = 1024};
}

class SessionSteps : public testing::TestWithParam<Parameter> {};

TEST_P(SessionSteps, EqualFloat64OneByOneAndInBlocks) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Case& c = GetParam().c;
  const Place place(GetParam().device);
  const TokenStream stream(c.shape, c.context + 310);
  const auto context = stream.context(c.context);
  const RetrievalOptions options = options_of(GetParam());
  struct Steps {
    std::int64_t step, own;
    std::vector<std::int64_t> checked;
  };
  // A device takes 300 tokens in two pieces.
  for (const Steps& steps : {Steps{1, 40, {0, 1, 20, 39}}, Steps{5, 63, {0, 4, 5, 42, 62}},
                             Steps{300, 310, {0, 19, 255, 256, 299, 300, 309}}}) {
    SCOPED_TRACE(testing::Message() << "steps of " << steps.step);
    const std::int64_t end = c.context + steps.own;
    Feed feed(place, stream, c.context, end);
    Session session(context, options, place.device());
    const DeviceMemory opened = place.device().memory();
    feed.run(session, steps.step);
    EXPECT_EQ(session.tokens(), end);
    // Rows of its own tokens: at most twice as many, and half of that beside them as they grow.
    const std::int64_t rows = 3 * std::max<std::int64_t>(steps.own, 16) * c.shape.layers *
                              c.shape.kv_heads * 2 * c.shape.head_dim * 2;
    const std::int64_t most = place.is_cuda() ? place.compute().allocation_bytes(rows) : 0;
    EXPECT_LE(place.device().memory().used, opened.used + most) << "a step took more than rows";
    EXPECT_LE(place.device().memory().peak, opened.peak + most) << "a step took more than rows";
    std::vector<std::int64_t> positions;
    for (const std::int64_t token : steps.checked) positions.push_back(c.context + token);
    EXPECT_LE(feed.worst(options, positions), 1.0) << "times what rounding may do";
  }
}

INSTANTIATE_TEST_SUITE_P(Options, SessionSteps, testing::ValuesIn(parameters()),
                         [](const testing::TestParamInfo<Parameter>& info) {
                           return info.param.c.name + ("_on_" + info.param.device);
                         });

class SessionOn : public testing::TestWithParam<std::string> {
 protected:
  RetrievalOptions with(RetrievalOptions options) const {
    options.capacity = 1024;
    return options;
  }
};

TEST_P(SessionOn, AllKeysRetrievedEqualsDense) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(small, 420);
  const auto context = stream.context(400)->with_index("hnsw:M=16,efc=100,ef=800");
  RetrievalOptions dense{.dense_layers = 2};
  for (const char* spec : {"exact", "hnsw:M=16,efc=100,ef=800"}) {
    const auto options = with({.index = spec, .k = TopK::same(100000), .window = 16, .sinks = 2});
    Session session(context, options, place.device());
    Feed feed(place, stream, 400, 420);
    feed.run(session, 1);
    EXPECT_LE(feed.worst(dense, {400, 410, 419}), 1.0) << spec;
    EXPECT_GT(session.stats().rows_retrieved, 0);
  }
}

TEST_P(SessionOn, DenseLayersOfALongContextTakeEveryRow) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  constexpr std::int64_t context = 17000;  // rows that leave for the device in two tiles
  const TokenStream stream(stack(3, 1, 64), context + 20);
  const auto options = with({.k = TopK::same(16), .dense_layers = 1, .window = 32});
  Session session(stream.context(context), options, place.device());
  Feed feed(place, stream, context, context + 20);
  feed.run(session, 7);
  EXPECT_LE(feed.worst(options, {context, context + 6, context + 19}), 1.0);
}

TEST_P(SessionOn, ForkGoesOnAsTheOriginal) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(small, 260);
  const auto options = with({.k = TopK::same(8), .dense_layers = 1, .window = 16});
  Session session(stream.context(200), options, place.device());
  Feed of_session(place, stream, 200, 260);
  of_session.run(session, 230, 3);
  Session copy = session.fork();
  EXPECT_EQ(copy.own_tokens(), 30);
  of_session.run(session, 1);
  EXPECT_EQ(copy.tokens(), 230) << "the original's tokens reached the fork";
  Feed of_copy(place, stream, 200, 260);
  of_copy.run(copy, 1);
  const auto want = of_session.outs();
  const auto got = of_copy.outs();
  for (std::size_t l = 0; l < want.size(); ++l) {
    const auto since = static_cast<std::ptrdiff_t>(30 * stream.q_width());
    EXPECT_TRUE(std::equal(want[l].begin() + since, want[l].end(), got[l].begin() + since))
        << "layer " << l;
  }
  EXPECT_LE(of_copy.worst(options, {230, 245, 259}), 1.0);
}

TEST_P(SessionOn, RefusedStepLeavesTheSessionAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(small, 520);
  // With sinks and window partly in the session's own tokens, which a refused step has written to.
  const auto options = with({.k = TopK::same(8), .window = 16, .sinks = 203});
  Session session(stream.context(200), options, place.device());
  Feed feed(place, stream, 200, 520);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto infinity = std::numeric_limits<float>::infinity();
  const auto refuse = [&](std::int64_t layer, std::int64_t tokens) {
    for (const char* where : {"q", "K", "V"}) {
      for (const std::int64_t token : {std::int64_t{0}, tokens - 1}) {
        TokenStream bad = stream;
        auto& values = *where == 'q' ? bad.q : *where == 'K' ? bad.k : bad.v;
        const std::int64_t width = *where == 'q' ? stream.q_width() : stream.kv_width();
        const std::int64_t position = session.context().tokens() + token;
        values[static_cast<std::size_t>(layer)]
              [static_cast<std::size_t>(position * width + small.head_dim + 7)] =
                  *where == 'V' ? infinity : nan;
        Feed broken(place, bad, 200, 200 + tokens);
        const std::string want = std::string(where) + " of layer " + std::to_string(layer);
        try {
          broken.attend(session, layer, 200, tokens);
          ADD_FAILURE() << want << ", token " << token << " was taken";
        } catch (const InvalidArgument& error) {
          const std::string what = error.what();
          EXPECT_EQ(what.rfind(want, 0), 0U) << what << "\nexpected " << want;
          EXPECT_NE(what.find("head 1, position " + std::to_string(position) + " "),
                    std::string::npos)
              << what << "\nexpected position " << position;
        }
      }
    }
  };
  refuse(0, 1);
  refuse(0, 9);
  refuse(0, 300);
  EXPECT_EQ(session.own_tokens(), 0);
  feed.attend(session, 0, 200, 300);
  refuse(1, 300);
  feed.attend(session, 1, 200, 300);
  EXPECT_EQ(session.own_tokens(), 300);
  feed.run(session, 10);
  EXPECT_LE(feed.worst(options, {200, 203, 260, 456, 499, 500, 519}), 1.0);
}

TEST_P(SessionOn, FullSessionIsRefusedAndStaysAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(small, 700);
  auto options = with({.k = TopK::same(8), .window = 16});
  options.capacity = 300;
  Session session(stream.context(100), options, place.device());
  Feed feed(place, stream, 100, 700);
  EXPECT_THROW(feed.attend(session, 0, 100, 301), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 0);
  feed.run(session, 400, 300);
  EXPECT_THROW(feed.attend(session, 0, 400, 1), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 300);
  EXPECT_LE(feed.worst(options, {100, 399}), 1.0);
}

TEST_P(SessionOn, RecallCountsEveryTokenOfABlock) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(small, 800);
  const auto options = with({.k = TopK::same(8), .window = 16, .measure_recall = true});
  Session session(stream.context(500), options, place.device());
  Feed feed(place, stream, 500, 800);
  feed.run(session, 300);
  EXPECT_EQ(session.stats().exact_rows, 300 * 2 * 6 * 8) << "tokens x layers x query heads x k";
  EXPECT_EQ(session.stats().exact_rows_found, session.stats().exact_rows);
}

INSTANTIATE_TEST_SUITE_P(Devices, SessionOn, testing::ValuesIn(test::devices),
                         [](const auto& info) { return info.param; });

// Both find the same rows, for both search with the same queries.
TEST(CudaSession, AgreesWithAHostSessionThatSearchesAGraph) {
  TOPKV_NEEDS_GPU();
  const Place cuda("cuda");
  const Place host("cpu");
  const TokenStream stream(small, 1060);
  const char* spec = "hnsw:M=8,efc=40,ef=64";
  const auto context = stream.context(1000)->with_index(spec);
  const RetrievalOptions options{.index = spec, .k = TopK::same(8), .window = 16, .capacity = 1024};
  Session on_host(context, options);
  Feed want(host, stream, 1000, 1060);
  want.run(on_host, 1);
  float largest = 0;
  for (const auto& values : stream.v) {
    for (const float x : values) largest = std::max(largest, std::abs(x));
  }
  Session session(context, options, cuda.device());
  Feed got(cuda, stream, 1000, 1060);
  got.run(session, 1);
  EXPECT_EQ(session.stats().rows_retrieved, on_host.stats().rows_retrieved);
  const auto a = want.outs();
  const auto b = got.outs();
  for (std::size_t l = 0; l < a.size(); ++l) {
    for (std::size_t i = 0; i < a[l].size(); ++i) {
      // Weights in bf16 on one side, 2^-9, and float32 sums, of the largest value.
      ASSERT_NEAR(a[l][i], b[l][i], largest * 0x1p-8) << "layer " << l << " element " << i;
    }
  }
}

TEST(CudaSession, AForkNeedsRoomForOneMoreSessionOnly) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 200);
  const auto context = stream.context(200);
  const std::int64_t before = place.device().memory().used;
  // Rows of a window that is large against everything else.
  const Session session(context, {.window = 100000, .capacity = 1024}, place.device());
  const std::int64_t one = place.device().memory().used - before;
  const std::int64_t peak = place.device().memory().peak;
  const Session copy = session.fork();
  EXPECT_LE(place.device().memory().used, before + 2 * one);
  EXPECT_LE(place.device().memory().peak, std::max(peak, before + 2 * one));
}

TEST(CudaSession, RowsInFloat32AndUnknownHeadDimsAreRefused) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(small, 20);
  try {
    const Session session(stream.context(20, DType::f32), {}, place.device());
    ADD_FAILURE() << "rows in float32 were taken";
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("f32"), std::string::npos) << what;
    EXPECT_NE(what.find("kv_dtype bf16"), std::string::npos) << what;
  }
  const TokenStream odd(stack(2, 1, 72), 20);
  EXPECT_THROW(Session(odd.context(20), {}, place.device()), Unsupported);
}

}  // namespace
}  // namespace topkv
