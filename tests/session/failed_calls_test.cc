// A call that fails leaves everything as it was: builder and session, at every place where a step
// can fail, in every layer, on the host and on a device. After the failure either the layer is
// given its tokens again, or the step is taken back in all layers and begun anew; what comes out
// then equals what an untouched one gives, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <ostream>
#include <vector>

#include "tests/support/failing.h"
#include "tests/support/session_feed.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::fail_everywhere;
using ::test::FailingAt;
using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

AttentionShape failing_stack(std::vector<std::int64_t> sliding = {}, std::int64_t chunk_len = 0) {
  return {.layers = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .sliding_window = std::move(sliding),
          .chunk_len = chunk_len};
}

/// What the caller does after a failure.
enum class After { same_layer_again, whole_step_anew };

struct Mode {
  std::string device;
  After after;
};

void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.device
       << (mode.after == After::same_layer_again ? "_same_layer_again" : "_whole_step_anew");
}

std::vector<Mode> modes() {
  std::vector<Mode> all;
  for (const std::string& device : ::test::devices) {
    for (const After after : {After::same_layer_again, After::whole_step_anew})
      all.push_back({device, after});
  }
  return all;
}

/// Gives a step to all layers; after a failure goes on as the mode says. give(layer) gives one
/// layer its part, roll_back() all layers what they had before the step. Returns the failures.
std::int64_t persist(std::int64_t layers, After after,
                     const std::function<void(std::int64_t)>& give,
                     const std::function<void()>& roll_back) {
  std::int64_t failures = 0;
  for (std::int64_t l = 0; l < layers;) {
    try {
      give(l);
      ++l;
    } catch (const std::bad_alloc&) {
      ++failures;
      if (after == After::same_layer_again) continue;
      roll_back();
      l = 0;
    }
  }
  return failures;
}

class FailedCalls : public testing::TestWithParam<Mode> {};

struct SessionCase {
  const char* name;
  RetrievalOptions options;
  std::vector<std::int64_t> sliding = {};
  std::vector<std::int64_t> steps = {1, 5, 1};
  std::int64_t context = 150;
  std::int64_t chunk_len = 0;
};

TEST_P(FailedCalls, OfASessionAtEveryPlaceLeaveItAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const RetrievalOptions base{.k = TopK::same(8), .window = 16, .sinks = 4, .capacity = 400};
  const auto with = [&](auto change) {
    RetrievalOptions options = base;
    change(options);
    return options;
  };
  for (const SessionCase& c : {
           SessionCase{"by query head", base},
           SessionCase{"by group", with([](auto& o) { o.select_by = SelectBy::group; })},
           SessionCase{"first layer dense", with([](auto& o) { o.dense_layers = 1; })},
           SessionCase{"recall measured", with([](auto& o) { o.measure_recall = true; })},
           SessionCase{"a sliding layer", base, {0, 24, 0}},
           SessionCase{"no context", base, {}, {30, 1}, 0},
           SessionCase{"longer than a piece", base, {}, {300}},
           SessionCase{"codes", with([](auto& o) { o.index = "codes"; })},
           SessionCase{
               "codes without a tail", with([](auto& o) { o.index = "codes:v=0"; }), {0, 24, 0}},
           SessionCase{"rows by mass", with([](auto& o) { o.index = "codes", o.mass = 0.7; })},
           SessionCase{"rows by error", with([](auto& o) { o.index = "codes", o.error = 0.3; })},
           SessionCase{"sampled rows",
                       with([](auto& o) {
                         o.guarantee = Guarantee{0.3, 0.3};
                       }),
                       {0, 24, 0},
                       {1, 5, 1},
                       300},
           SessionCase{"all rows by error",
                       with([](auto& o) { o.index = "codes", o.error = 1e-6; })},
           SessionCase{
               "codes for many tokens", with([](auto& o) { o.index = "codes"; }), {}, {300}},
           SessionCase{"a turn",
                       with([](auto& o) {
                         o.index = "codes";
                         o.capacity = 600;
                         o.turns = PrefillAttention{
                             .mode = Prefill::sparse, .window = 16, .keys = 128, .least_keys = 64};
                       }),
                       {0, 24, 0},
                       {512, 1}},
           SessionCase{"pages", with([](auto& o) { o.index = "quest:page=4"; }), {0, 24, 0}},
           SessionCase{"components", with([](auto& o) { o.index = "sparq:r=8"; })},
           SessionCase{"clusters", with([](auto& o) { o.index = "retroinfer:size=4"; })},
           SessionCase{"by chunks", base, {}, {1, 5, 1}, 150, 51},
           SessionCase{
               "codes by chunks", with([](auto& o) { o.index = "codes"; }), {}, {1, 5}, 150, 51},
           SessionCase{"all rows by error, by chunks",
                       with([](auto& o) { o.index = "codes", o.error = 1e-6; }),
                       {},
                       {4},
                       150,
                       51},
       }) {
    SCOPED_TRACE(c.name);
    if (c.options.guarantee && place.is_cuda()) continue;  // which refuses it
    std::int64_t total = c.context;
    for (const std::int64_t tokens : c.steps) total += tokens;
    const TokenStream stream(failing_stack(c.sliding, c.chunk_len), total);
    const auto context = stream.context(c.context)->with_index(c.options.index);

    Feed clean_feed(place, stream, c.context, total);
    Session clean(context, c.options, place.device());
    const auto run = [&](Session& session, Feed& feed) {
      std::int64_t failures = 0;
      for (const std::int64_t tokens : c.steps) {
        const std::int64_t own = session.own_tokens();
        failures += persist(
            stream.shape.layers, GetParam().after,
            [&](std::int64_t l) { feed.attend(session, l, c.context + own, tokens); },
            [&] {
              session.truncate(own);
              EXPECT_EQ(session.own_tokens(), own);
            });
      }
      return failures;
    };
    run(clean, clean_feed);
    const auto want = clean_feed.outs();

    const std::int64_t places = fail_everywhere([&](std::int64_t n) {
      Feed feed(place, stream, c.context, total);
      Session session(context, c.options, place.device());
      const std::int64_t failures = run(session, feed);
      ASSERT_EQ(failures, FailingAt::reached_after() < 0 ? 0 : 1);
      ASSERT_EQ(session.tokens(), total);
      ASSERT_EQ(feed.outs(), want) << "failure at place " << n;
      if (GetParam().after == After::whole_step_anew) return;  // layers were attended twice
      ASSERT_EQ(session.stats().steps, clean.stats().steps);
      ASSERT_EQ(session.stats().rows_retrieved, clean.stats().rows_retrieved);
      ASSERT_EQ(session.stats().exact_rows, clean.stats().exact_rows);
    });
    EXPECT_GE(places, 2 * stream.shape.layers);
  }
}

TEST_P(FailedCalls, OfABuilderAtEveryPlaceLeaveItAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const std::vector<std::int64_t> calls = {40, 1, 70, 20};
  const std::int64_t total = 131;
  for (const PrefillAttention& attention :
       {PrefillAttention{}, PrefillAttention{Prefill::window, 20, 3}}) {
    for (const std::vector<std::int64_t>& sliding :
         {std::vector<std::int64_t>{}, std::vector<std::int64_t>{0, 24, 0}}) {
      const TokenStream stream(failing_stack(sliding), total);
      const auto run = [&](Feed& feed) {
        ContextBuilder builder(stream.shape, {.capacity = 50, .attention = attention},
                               place.device());
        for (const std::int64_t tokens : calls) {
          const std::int64_t first = builder.tokens(0);
          for (bool reserved = false; !reserved;) {
            try {
              builder.reserve(first + tokens);
              reserved = true;
            } catch (const std::bad_alloc&) {
              EXPECT_EQ(builder.tokens(0), first);
            }
          }
          persist(
              stream.shape.layers, GetParam().after,
              [&](std::int64_t l) {
                const std::int64_t before = builder.tokens(l);
                try {
                  builder.attend(feed.step(l, first, tokens));
                } catch (...) {
                  EXPECT_EQ(builder.tokens(l), before);
                  throw;
                }
              },
              [&] {
                builder.truncate(first);
                EXPECT_EQ(builder.tokens(0), first);
              });
        }
        return builder.freeze();
      };
      Feed clean_feed(place, stream, 0, total);
      const auto clean = run(clean_feed);
      const auto want = clean_feed.outs();
      const std::int64_t places = fail_everywhere([&](std::int64_t n) {
        Feed feed(place, stream, 0, total);
        const auto context = run(feed);
        ASSERT_EQ(feed.outs(), want) << "failure at place " << n;
        ASSERT_EQ(context->tokens(), total);
        for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
          for (std::int64_t head = 0; head < stream.shape.kv_heads; ++head) {
            const RowsView got = context->rows(l, head);
            const RowsView expected = clean->rows(l, head);
            const auto bytes = static_cast<std::size_t>(got.count() * got.keys.stride_bytes);
            ASSERT_EQ(std::memcmp(got.keys.data, expected.keys.data, bytes), 0) << n;
            ASSERT_EQ(std::memcmp(got.values.data, expected.values.data, bytes), 0) << n;
          }
        }
      });
      EXPECT_GE(places, static_cast<std::int64_t>(2 * calls.size()) * stream.shape.layers);
    }
  }
}

class TakenBack : public testing::TestWithParam<std::string> {};

// A first chunk that failed, or was taken back, has chosen no scales for the rows that come
// instead.
TEST_P(TakenBack, FirstRowsLeaveNoScalesOfChannels) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  TokenStream stream(failing_stack(), 400);
  for (std::vector<float>& keys : stream.k) {
    for (std::size_t i = 5; i < keys.size(); i += 64) keys[i] *= 16;
  }
  const auto build = [&](ContextBuilder& builder, std::int64_t tokens) {
    Feed feed(place, stream, 0, stream.total);
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) builder.attend(feed.step(l, 0, tokens));
  };
  const ContextOptions options{.capacity = stream.total, .dtype = DType::q8};
  ContextBuilder few(stream.shape, options, place.device());
  build(few, 100);
  const auto want = few.freeze();
  ContextBuilder many(stream.shape, options, place.device());
  build(many, 300);
  ASSERT_GT(many.freeze()->rows(0, 0).keys.channels[5], 1);
  ContextBuilder none(stream.shape, options, place.device());
  build(none, 300);
  none.truncate(0);
  ASSERT_EQ(none.freeze()->rows(0, 0).keys.channels[5], 1);
  bool failed = true;
  for (std::int64_t n = 1; failed; ++n) {
    ContextBuilder builder(stream.shape, options, place.device());
    {
      const FailingAt failing(n);
      try {
        build(builder, 300);
      } catch (const std::bad_alloc&) {
      }
      failed = FailingAt::reached_after() >= 0;
    }
    if (builder.tokens(0) > 0) builder.truncate(0);
    build(builder, 100);
    const auto got = builder.freeze();
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      for (std::int64_t head = 0; head < stream.shape.kv_heads; ++head) {
        const KeyView keys = got->rows(l, head).keys;
        const KeyView expected = want->rows(l, head).keys;
        ASSERT_EQ(keys.channels[5], 1) << "failure at place " << n;
        ASSERT_EQ(std::memcmp(keys.data, expected.data,
                              static_cast<std::size_t>(100 * keys.stride_bytes)),
                  0)
            << "failure at place " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TakenBack, testing::ValuesIn(::test::devices));

/// The last value of q is replaced; K and V stay as they were.
TEST_P(FailedCalls, OfReadingAndOfQueriesThatAreNotFiniteLeaveASessionAsItWas) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const TokenStream stream(failing_stack(), 160);
  const auto context = stream.context(150);
  const RetrievalOptions options{.k = TopK::same(8), .window = 16, .capacity = 64};
  Feed feed(place, stream, 150, 160);
  Session clean(context, options, place.device());
  feed.run(clean, 1);
  const auto want = feed.outs();

  auto bad_values = stream.q[1];
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    bad_values.back() = bad;
    const Buffer bad_q = place.put(bad_values);
    Session session(context, options, place.device());
    for (std::int64_t t = 150; t < 160; ++t) {
      for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
        AttentionStep step = feed.step(l, t, 1);
        step.q = bad_q.floats() + 159 * stream.q_width();
        EXPECT_THROW(session.attend(step), InvalidArgument);
        step.k = step.v = nullptr;
        step.kv_tokens = 0;
        EXPECT_THROW(session.attend(step), InvalidArgument);
        feed.attend(session, l, t, 1);
      }
    }
    EXPECT_EQ(feed.outs(), want);
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, FailedCalls, testing::ValuesIn(modes()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace topkv
