// The rules of which rows are enough: a rule that is satisfied at once changes nothing, one that
// cannot be satisfied ends at k rows (mass) or at dense attention in float64 (error), and what lies
// between depends on nothing but the token.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/session_feed.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using test::expect_step;
using test::Stream;

const AttentionShape rules_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};
constexpr std::int64_t rules_tokens = 3000;
constexpr std::int64_t heads_of_a_token = 12;  // layers x q_heads

/// A context with a tail, and sessions over it.
struct Rules {
  explicit Rules(AttentionShape shape = rules_shape)
      : stream(std::move(shape), rules_tokens + 60),
        context(stream.prefill(rules_tokens)->with_index("codes")) {}

  /// index: exact, which is searched, or codes, which are scanned.
  RetrievalOptions options(const char* index = "exact") const {
    return {.index = index, .k = TopK::same(32), .tail = "codes", .window = 16, .capacity = 100};
  }
  /// What a session gives for the tokens after the context.
  std::vector<std::vector<float>> outs(const RetrievalOptions& options, std::int64_t step,
                                       SessionStats* stats = nullptr) const {
    Session session(context, options);
    auto outs = stream.feed(session, rules_tokens + 60, step);
    if (stats != nullptr) *stats = session.stats();
    return outs;
  }

  Stream stream;
  std::shared_ptr<const Context> context;
};

TEST(SessionRules, OnesThatAreSatisfiedAtOnceChangeNothing) {
  const Rules rules;
  for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
    for (const char* index : {"exact", "codes"}) {
      RetrievalOptions options = rules.options();
      options.index = index;
      options.select_by = by;
      SessionStats plain, ruled;
      const auto want = rules.outs(options, 7, &plain);
      options.error = 1e6;
      const auto got = rules.outs(options, 7, &ruled);
      // (Parts of a scan are merged in another order.)
      const bool scanned = by == SelectBy::query_head && options.index == options.tail;
      EXPECT_LT(distance(got, want), scanned ? 1e-6 : 1e-30) << index;
      EXPECT_EQ(ruled.rows_retrieved, plain.rows_retrieved);
      EXPECT_EQ(ruled.retrieved_more, 0);
    }
  }
  // A sixteenth of k holds a share that is next to nothing.
  RetrievalOptions options = rules.options();
  const auto want = rules.outs(options, 7);
  options.k = TopK::same(32 * 16 - 3);
  options.mass = 1e-9;
  SessionStats stats;
  EXPECT_EQ(rules.outs(options, 7, &stats), want);
  EXPECT_EQ(stats.retrieved_more, 0);
}

TEST(SessionRules, AShareThatIsNotReachedTakesKRows) {
  const Rules rules;
  for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
    for (const std::int64_t k : {1, 2, 7, 16, 50, 333}) {
      RetrievalOptions options = rules.options();
      options.k = TopK::same(k);
      options.select_by = by;
      SessionStats plain, ruled;
      const auto want = rules.outs(options, 9, &plain);
      options.mass = 0.999999;
      EXPECT_EQ(rules.outs(options, 9, &ruled), want) << k;
      EXPECT_EQ(ruled.rows_retrieved, plain.rows_retrieved) << k;
      EXPECT_EQ(ruled.retrieved_more, k == 1 ? 0 : 60 * heads_of_a_token) << k;
      EXPECT_EQ(ruled.went_dense, 0);
    }
  }
}

TEST(SessionRules, AShareOfTheAttentionTakesFewerRowsAndHoldsIt) {
  const Rules rules;
  for (const char* index : {"exact", "codes"}) {
    RetrievalOptions options = rules.options(index);
    options.k = TopK::same(1024);
    std::int64_t before = 0;
    for (const double mass : {0.1, 0.3, 0.5}) {
      options.mass = mass;
      Session session(rules.context, options);
      rules.stream.feed(session, rules_tokens + 60, 1);
      EXPECT_GT(session.stats().rows_retrieved, before) << mass;
      before = session.stats().rows_retrieved;
      for (const TailFigures& layer : session.tail_figures()) {
        EXPECT_GT(layer.mean_exact_mass(), mass) << mass;
      }
    }
    options.mass = {};
    SessionStats plain;
    rules.outs(options, 1, &plain);
    EXPECT_LT(before, plain.rows_retrieved);
  }
}

TEST(SessionRules, AnErrorThatIsNotReachedEndsAtDenseAttention) {
  for (const float softcap : {0.0F, 4.0F}) {
    AttentionShape shape = rules_shape;
    shape.softcap = softcap;
    Rules rules(shape);
    rules.context = rules.context->with_index("hnsw");
    for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
      for (const char* index : {"exact", "hnsw", "codes"}) {
        for (const std::int64_t step : {1, 13}) {
          if (step == 1 && by == SelectBy::group) continue;  // takes long
          RetrievalOptions options = rules.options();
          options.index = index;
          options.k = TopK::same(8);
          options.select_by = by;
          options.error = 1e-12;
          if (step == 13) options.mass = 0.999999;
          SessionStats stats;
          const auto outs = rules.outs(options, step, &stats);
          RetrievalOptions dense = options;
          dense.dense_layers = rules_shape.layers;
          for (const std::int64_t t : {0, 12, 30, 59}) {
            for (std::int64_t l = 0; l < rules_shape.layers; ++l) {
              expect_step(rules.stream, l, rules_tokens + t, dense,
                          &outs[static_cast<std::size_t>(l)]
                               [static_cast<std::size_t>(t * rules.stream.q_width())]);
            }
          }
          EXPECT_EQ(stats.went_dense, 60 * heads_of_a_token);
          EXPECT_EQ(stats.retrieved_more, 60 * heads_of_a_token);
          // All of the context between the sinks and the window, which leaves it token by token,
          // and the own rows that windows of tokens of the step do not hold.
          EXPECT_GE(stats.rows_retrieved, 60 * heads_of_a_token * (rules_tokens - 4 - 16));
        }
      }
    }
  }
}

class SessionRulesOn : public testing::TestWithParam<std::string> {};

TEST_P(SessionRulesOn, TheHostSearchesForCodesTooAndKnowsWhatTheDeviceAttended) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const ::test::Place place(GetParam());
  const ::test::TokenStream stream({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64},
                                   1060);
  const auto context = stream.context(1000)->with_index("codes");
  const RetrievalOptions dense{.dense_layers = 2, .window = 16, .capacity = 60};
  for (const std::int64_t step : {1, 13}) {
    RetrievalOptions options{.index = "codes",
                             .k = TopK::same(8),
                             .select_by = SelectBy::group,
                             .window = 16,
                             .capacity = 60};
    options.mass = 0.999999;
    options.error = 1e-12;
    Session all(context, options, place.device());
    ::test::Feed feed(place, stream, 1000, 1060);
    feed.run(all, step);
    EXPECT_LE(feed.worst(dense, {1000, 1012, 1030, 1059}), 1.0) << "times what rounding may do";
    EXPECT_EQ(all.stats().device_index_bytes, 0);
    EXPECT_EQ(all.stats().went_dense, 60 * 2 * 4);
    // Sinks, window and what is found hold about this share on any device.
    options.k = TopK::same(512);
    options.mass = 0.5;
    options.error = {};
    Session some(context, options, place.device());
    feed.run(some, step);
    EXPECT_GT(some.stats().retrieved_more, 0);
    EXPECT_LT(some.stats().rows_retrieved, 60 * 2 * 4 * 512);
    for (const TailFigures& layer : some.tail_figures()) EXPECT_GT(layer.mean_exact_mass(), 0.5);
  }
}

TEST_P(SessionRulesOn, AnErrorBeginsWithAScan) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const ::test::Place place(GetParam());
  ::test::TokenStream stream({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64}, 4060);
  const auto context = stream.context(4000)->with_index("codes");
  for (const std::int64_t step : {1, 13}) {
    const auto run = [&](std::optional<double> error, const auto& see) {
      Session session(context,
                      {.index = "codes",
                       .k = TopK::same(8),
                       .error = error,
                       .window = 16,
                       .capacity = 60,
                       .measure_recall = true},
                      place.device());
      ::test::Feed feed(place, stream, 4000, 4060);
      feed.run(session, step);
      EXPECT_EQ(session.stats().device_index_bytes > 0, place.is_cuda());
      see(session, feed);
      return feed.outs();
    };
    const auto plain = run({}, [](const Session&, const ::test::Feed&) {});
    const auto kept = run(1e6, [](const Session& session, const ::test::Feed&) {
      EXPECT_EQ(session.stats().retrieved_more, 0);
      EXPECT_EQ(session.tail_figures()[1].heads, 60 * 4);
    });
    EXPECT_LT(distance(kept, plain), 1e-4) << step;
    const auto dense = run(1e-12, [](const Session& session, const ::test::Feed& feed) {
      EXPECT_EQ(session.stats().went_dense, 60 * 2 * 4);
      EXPECT_EQ(session.stats().exact_rows, 60 * 2 * 4 * 8);
      EXPECT_EQ(session.stats().exact_rows_found, session.stats().exact_rows);
      EXPECT_LE(feed.worst({.dense_layers = 2}, {4000, 4012, 4030, 4059}), 1.0);
    });
    const double far = distance(plain, dense);
    const double told = 0.7 * far;
    const auto some = run(told, [](const Session& session, const ::test::Feed&) {
      EXPECT_GT(session.stats().retrieved_more, 0);
      EXPECT_LT(session.stats().went_dense, 60 * 2 * 4);
    });
    EXPECT_LT(distance(some, dense), 1.2 * told) << step;
  }
}

TEST_P(SessionRulesOn, AShareBeginsWithAScanForASixteenth) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const ::test::Place place(GetParam());
  const ::test::TokenStream stream({.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64},
                                   4060);
  const auto context = stream.context(4000)->with_index("codes");
  for (const std::int64_t step : {1, 13}) {
    SessionStats stats;
    double share = 0;  // of the attention that is in the rows of a session without a rule
    const auto run = [&](std::int64_t k, std::optional<double> mass) {
      RetrievalOptions options{
          .index = "codes", .k = TopK::same(k), .mass = mass, .window = 16, .capacity = 60};
      options.measure_recall = true;
      Session session(context, options, place.device());
      ::test::Feed feed(place, stream, 4000, 4060);
      feed.run(session, step);
      stats = session.stats();
      EXPECT_EQ(stats.device_index_bytes > 0, place.is_cuda());
      if (!mass) share = session.tail_figures()[1].mean_exact_mass();
      return feed.outs();
    };
    const auto all = run(128, {});
    const SessionStats all_stats = stats;
    EXPECT_LT(distance(run(128, 0.999999), all), 1e-4) << step;
    EXPECT_EQ(stats.retrieved_more, 60 * 2 * 6);
    EXPECT_EQ(stats.rows_retrieved, all_stats.rows_retrieved);
    EXPECT_EQ(stats.exact_rows_found, all_stats.exact_rows_found);
    const auto few = run(8, {});
    const SessionStats few_stats = stats;
    EXPECT_LT(distance(run(128, 1e-9), few), 1e-4) << step;
    EXPECT_EQ(stats.retrieved_more, 0);
    EXPECT_EQ(stats.rows_retrieved, few_stats.rows_retrieved);
    EXPECT_EQ(stats.exact_rows, few_stats.exact_rows) << "of so many as were asked for";
    EXPECT_EQ(stats.exact_rows_found, few_stats.exact_rows_found);
    run(128, share);
    EXPECT_GT(stats.retrieved_more, 0);
    EXPECT_LT(stats.retrieved_more, 60 * 2 * 6);
    EXPECT_EQ(stats.retrieved_more % 3, 0) << "the heads of a group go together";
    EXPECT_EQ(stats.went_dense, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SessionRulesOn, testing::ValuesIn(::test::devices));

TEST(SessionRules, AnErrorIsKeptAboutAsTold) {
  const Rules rules;
  Session dense(rules.context, {.dense_layers = 2});
  const auto want = rules.stream.feed(dense, rules_tokens + 60, 20);
  for (const char* index : {"exact", "codes"}) {
    RetrievalOptions options = rules.options(index);
    const double free = distance(rules.outs(options, 20), want);
    std::int64_t rows = 0;
    for (const double error : {0.5, 0.2, 0.05}) {
      options.error = error;
      SessionStats stats;
      const double far = distance(rules.outs(options, 20, &stats), want);
      EXPECT_LT(far, 1.3 * error) << "without the rule " << free;
      EXPECT_GE(stats.rows_retrieved, rows);
      EXPECT_LE(stats.went_dense, stats.retrieved_more);
      rows = stats.rows_retrieved;
    }
    EXPECT_GT(free, 0.05);
  }
}

TEST(SessionRules, StepsOfAnySizeGiveTheSame) {
  const Rules rules;
  for (const auto& [index, by] : {std::pair("exact", SelectBy::query_head),
                                  {"exact", SelectBy::group},
                                  {"codes", SelectBy::query_head}}) {
    for (const auto& [mass, error] : {std::pair(0.6, 0.0), {0.0, 0.45}, {0.4, 0.4}}) {
      RetrievalOptions options = rules.options(index);
      options.k = TopK::same(error > 0 ? 8 : 64);
      options.select_by = by;
      if (mass > 0) options.mass = mass;
      if (error > 0) options.error = error;
      SessionStats one, many;
      const auto want = rules.outs(options, 1, &one);
      EXPECT_GT(one.retrieved_more, 0);
      EXPECT_LT(one.went_dense, one.retrieved_more);
      for (const std::int64_t step : {7, 60}) {
        EXPECT_LT(distance(rules.outs(options, step, &many), want), 1e-4) << step;
        EXPECT_EQ(many.retrieved_more, one.retrieved_more) << step;
        EXPECT_EQ(many.went_dense, one.went_dense) << step;
      }
    }
  }
}

TEST(SessionRules, HeadsThatAMethodChoosesForTogetherGoOnTogether) {
  Rules rules;
  for (const auto& [index, tail] : {std::pair("sparq:r=4", "codes"),
                                    {"ivf:size=4,share=8", "codes"},
                                    {"exact", "sparq:r=4,v=1"},
                                    {"sparq:r=4,v=1", "sparq:r=4,v=1"}}) {
    rules.context = rules.context->with_index(index)->with_index(tail);
    for (const auto& [mass, error] : {std::pair(0.05, 0.0), {0.0, 0.8}, {0.05, 0.9}}) {
      RetrievalOptions options = rules.options(index);
      options.tail = tail;
      options.k = TopK::same(mass > 0 ? 64 : 8);
      if (mass > 0) options.mass = mass;
      if (error > 0) options.error = error;
      SessionStats one, many;
      const auto want = rules.outs(options, 1, &one);
      EXPECT_GT(one.retrieved_more, 0) << index << tail << mass;
      EXPECT_LT(one.retrieved_more, 60 * heads_of_a_token) << index << tail << mass;
      EXPECT_EQ(one.retrieved_more % 3, 0) << "the heads of a group go together";
      for (const std::int64_t step : {7, 60}) {
        EXPECT_LT(distance(rules.outs(options, step, &many), want), 1e-4) << index << tail << step;
        EXPECT_EQ(many.retrieved_more, one.retrieved_more) << step;
        EXPECT_EQ(many.rows_retrieved, one.rows_retrieved) << step;
        EXPECT_EQ(many.went_dense, one.went_dense) << step;
      }
    }
  }
}

TEST(SessionRules, AQuestionThatAMethodChoosesForAsAWholeGoesOnAsAWhole) {
  Rules rules;
  rules.context = rules.context->with_index("squeezed:c=5");
  for (const auto& [mass, error] : {std::pair(0.03, 0.0), {0.0, 0.9}}) {
    RetrievalOptions options = rules.options("squeezed:c=5");
    options.k = TopK::same(mass > 0 ? 64 : 8);
    if (mass > 0) options.mass = mass;
    if (error > 0) options.error = error;
    SessionStats stats;
    rules.outs(options, 3, &stats);
    EXPECT_GT(stats.retrieved_more, 0) << mass;
    EXPECT_LT(stats.retrieved_more, 60 * heads_of_a_token) << mass;
    EXPECT_EQ(stats.retrieved_more % 9, 0) << "three tokens of three heads";
    EXPECT_EQ(stats.went_dense % 9, 0);
  }
}

TEST(SessionRules, MoreRowsAreMoreThanAScanListed) {
  // A scan lists what any of 32 query heads found.
  const Rules rules({.layers = 1, .q_heads = 32, .kv_heads = 1, .head_dim = 16});
  RetrievalOptions options = rules.options("codes");
  options.k = TopK::same(4);
  SessionStats plain;
  rules.outs(options, 1, &plain);
  SessionStats in_steps;
  rules.outs(options, 7, &in_steps);
  EXPECT_EQ(in_steps.rows_retrieved, plain.rows_retrieved);
  std::int64_t before = plain.rows_retrieved;
  for (const double error : {1.0, 0.6, 0.3}) {
    options.error = error;
    SessionStats stats;
    rules.outs(options, 1, &stats);
    EXPECT_GE(stats.rows_retrieved, before) << error;
    before = stats.rows_retrieved;
    SessionStats many;  // tokens at a time: each goes its own way
    rules.outs(options, 7, &many);
    EXPECT_EQ(many.retrieved_more, stats.retrieved_more) << error;
    EXPECT_EQ(many.rows_retrieved, before) << error;
  }
  EXPECT_GT(before, plain.rows_retrieved);
}

TEST(SessionRules, ForkAndTruncateGoOnAsBefore) {
  const Rules rules;
  for (const char* index : {"exact", "codes"}) {
    RetrievalOptions options = rules.options(index);
    options.mass = 0.4;
    options.error = 0.2;
    Session session(rules.context, options);
    rules.stream.feed(session, rules_tokens + 20, 1);
    Session copy = session.fork();
    EXPECT_EQ(copy.stats().retrieved_more, session.stats().retrieved_more);
    EXPECT_EQ(copy.stats().went_dense, session.stats().went_dense);
    const auto want = rules.stream.feed(session, rules_tokens + 60, 4);
    EXPECT_EQ(rules.stream.feed(copy, rules_tokens + 60, 4), want);
    session.truncate(20);
    EXPECT_EQ(rules.stream.feed(session, rules_tokens + 60, 4), want);
  }
}

TEST(SessionRules, StepsThatOnlyReadKeepThem) {
  const Rules rules;
  const auto read = [&](const RetrievalOptions& options) {
    Session session(rules.context, options);
    rules.stream.feed(session, rules_tokens + 10, 1);
    std::vector<std::vector<float>> outs;
    for (std::int64_t layer = 0; layer < rules_shape.layers; ++layer) {
      outs.emplace_back(static_cast<std::size_t>(40 * rules.stream.q_width()));
      AttentionStep step = rules.stream.step(layer, rules_tokens + 10, 40, outs.back().data());
      step.kv_tokens = 0;
      session.attend(step);
    }
    return outs;
  };
  RetrievalOptions dense = rules.options();
  dense.dense_layers = rules_shape.layers;
  for (const char* index : {"exact", "codes"}) {
    RetrievalOptions options = rules.options(index);
    options.error = 1e-12;
    EXPECT_LT(distance(read(options), read(dense)), 1e-5) << index;
  }
}

TEST(SessionRules, ShortContextsAndNoneAreDense) {
  const Stream stream(rules_shape, 90);
  for (const std::int64_t tokens : {0, 1, 5, 30}) {
    const auto context = stream.prefill(tokens)->with_index("codes");
    Session dense(context, {.dense_layers = 2});
    const auto want = stream.feed(dense, tokens + 50, 3);
    for (const std::int64_t sinks : {0, 4, 300}) {
      Session session(context, {.index = "codes",
                                .k = TopK::same(2),
                                .mass = 0.5,
                                .error = 1e-12,
                                .window = 5,
                                .sinks = sinks});
      EXPECT_LT(distance(stream.feed(session, tokens + 50, 3), want), 1e-5) << tokens;
    }
  }
}

TEST(SessionRules, RecallIsThatOfAllQueries) {
  const Rules rules;
  RetrievalOptions options = rules.options();
  options.index = "codes";
  options.select_by = SelectBy::group;  // so that both search in the same way
  options.measure_recall = true;
  SessionStats plain, ruled;
  rules.outs(options, 5, &plain);
  options.error = 0.2;
  rules.outs(options, 5, &ruled);
  EXPECT_EQ(ruled.exact_rows, plain.exact_rows);
  EXPECT_EQ(ruled.exact_rows_found, plain.exact_rows_found);
}

TEST(SessionRules, HostileRowsGiveNoNonsense) {
  for (const float size : {0.0F, 1e-30F, 1e15F}) {
    Stream stream(rules_shape, rules_tokens + 60);
    for (auto* rows : {&stream.k, &stream.v}) {
      for (auto& layer : *rows) {
        for (float& x : layer) x *= size;
      }
    }
    const auto context = stream.prefill(rules_tokens)->with_index("codes");
    Session session(context, {.index = "codes", .mass = 0.9, .error = 0.01, .window = 16});
    for (const auto& layer : stream.feed(session, rules_tokens + 8, 3)) {
      for (const float x : layer) EXPECT_FALSE(std::isnan(x)) << size;
    }
  }
}

TEST(SessionRules, ValuesThatMeanNothingAreRefused) {
  const Rules rules;
  const auto said = [&](const RetrievalOptions& options) {
    try {
      Session(rules.context, options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  for (const double bad : {0.0, -0.5, 1.0, 1.5, infinity, -infinity, nan}) {
    RetrievalOptions options = rules.options();
    options.mass = bad;
    EXPECT_NE(said(options).find("it must be above 0 and below 1"), std::string::npos) << bad;
    if (bad == 1.0 || bad == 1.5) continue;
    options = rules.options();
    options.error = bad;
    EXPECT_NE(said(options).find("it must be above 0"), std::string::npos) << bad;
  }
  RetrievalOptions options = rules.options();
  options.tail = "none";
  options.mass = 0.9;
  EXPECT_NE(said(options).find("mass is 0.9, but the session has no tail"), std::string::npos);
  options.mass = {};
  options.error = 0.1;
  EXPECT_NE(said(options).find("error is 0.1, but the session has no tail"), std::string::npos);
  options.tail = "";
  EXPECT_NE(said(options).find("give a tail such as codes:k=16,v=8"), std::string::npos);
  options.index = "codes";
  EXPECT_EQ(said(options), "accepted");
}

}  // namespace
}  // namespace topkv
