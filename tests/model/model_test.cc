// The model runner end to end on the bundled checkpoint: prefill laws, generation, sampling.
#include "topkv/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "src/core/math/convert.h"
#include "src/model/generate/sampler.h"
#include "tests/support/failing.h"
#include "topkv/error.h"

namespace topkv {
namespace {

const Model& bundled() {
  static const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  return model;
}

/// A text with one fact in it, of about `tokens` tokens.
std::vector<Token> text_with_fact(std::int64_t tokens) {
  const Tokenizer& tokenizer = bundled().tokenizer();
  const auto filler = tokenizer.encode(" The grass is green. The sky is blue. The sun is yellow.");
  std::vector<Token> out = {bundled().config().bos};
  const auto add = [&](const std::vector<Token>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  while (static_cast<std::int64_t>(out.size()) < tokens / 3) add(filler);
  add(tokenizer.encode(" One of the special magic numbers for quiet-river is: 4512378."));
  while (static_cast<std::int64_t>(out.size()) < tokens) add(filler);
  return out;
}

std::vector<Token> question() {
  return bundled().tokenizer().encode(
      "\nWhat is the special magic number for quiet-river mentioned in the provided text? The "
      "special magic number for quiet-river mentioned in the provided text is");
}

/// All rows of a context as float32.
std::vector<float> rows_of(const Context& context) {
  std::vector<float> all;
  for (std::int64_t l = 0; l < context.shape().layers; ++l) {
    for (std::int64_t h = 0; h < context.shape().kv_heads; ++h) {
      const RowsView rows = context.rows(l, h);
      const std::size_t start = all.size();
      all.resize(start + static_cast<std::size_t>(rows.count() * 2 * rows.dim()));
      to_float(rows.keys.data, rows.keys.dtype, rows.count() * rows.dim(), all.data() + start);
      to_float(rows.values.data, rows.keys.dtype, rows.count() * rows.dim(),
               all.data() + start + rows.count() * rows.dim());
    }
  }
  return all;
}

class PrefillChunks : public testing::TestWithParam<Prefill> {};

TEST_P(PrefillChunks, OfAnySizeGiveTheSameStore) {
  const auto tokens = text_with_fact(500);
  PrefillOptions options{.attention = {.mode = GetParam(), .window = 100, .sinks = 4},
                         .chunk = 2048,
                         .kv_dtype = DType::f32};
  const auto want = rows_of(*bundled().prefill(tokens, options));
  for (const std::int64_t chunk : {1, 33, 256}) {
    options.chunk = chunk;
    const auto got = rows_of(*bundled().prefill(tokens, options));
    ASSERT_EQ(got.size(), want.size());
    double worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      worst = std::max(worst, std::abs(double{got[i]} - want[i]) / (1 + std::abs(want[i])));
    }
    // float32 sums of up to 1024 terms through 8 layers; the order of the terms may differ.
    EXPECT_LT(worst, 1e-4) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefillChunks, testing::Values(Prefill::dense, Prefill::window),
                         [](const auto& info) {
                           return info.param == Prefill::dense ? "dense" : "window";
                         });

TEST(Prefill, WindowOverTheWholeTextEqualsDense) {
  const auto tokens = text_with_fact(300);
  const auto dense = rows_of(*bundled().prefill(tokens, {.kv_dtype = DType::f32}));
  const auto window = rows_of(*bundled().prefill(
      tokens, {.attention = {.mode = Prefill::window, .window = 1000}, .kv_dtype = DType::f32}));
  EXPECT_EQ(dense, window);
}

TEST(Prefill, BadInputIsRefusedBeforeWork) {
  const std::vector<Token> none;
  const std::vector<Token> wild = {5, 4096};
  const std::vector<Token> negative = {-1};
  const std::vector<Token> some(1000, 5);
  EXPECT_THROW(bundled().prefill(none), InvalidArgument);
  EXPECT_THROW(bundled().prefill(wild), InvalidArgument);
  EXPECT_THROW(bundled().prefill(negative), InvalidArgument);
  EXPECT_THROW(bundled().prefill(some, {.chunk = -1}), InvalidArgument);
  EXPECT_THROW(bundled().prefill(some, {.memory_budget = 1000}), OutOfMemory);
}

TEST(Generate, AnswersTheQuestionByRetrievalAndDensely) {
  const auto context =
      bundled().prefill(text_with_fact(3000), {.attention = {.mode = Prefill::window}});
  for (const std::int64_t dense_layers : {0, 8}) {
    Session session(context, {.k = TopK::same(16), .dense_layers = dense_layers, .window = 256});
    const auto result = bundled().generate(session, question(), {.max_tokens = 10});
    EXPECT_NE(bundled().tokenizer().decode(result.tokens).find("4512378"), std::string::npos);
    EXPECT_EQ(session.stats().rows_retrieved > 0, dense_layers == 0);
  }
}

TEST(Generate, LogitsOfASessionThatRetrievesAllEqualTheDenseOnes) {
  auto tokens = text_with_fact(400);
  const auto context = bundled().prefill(tokens, {.kv_dtype = DType::f32});
  Session session(context, {.k = TopK::same(1 << 20), .window = 8, .sinks = 2});
  const auto asked = question();
  const auto got = bundled().logits(session, asked);
  tokens.insert(tokens.end(), asked.begin(), asked.end());
  const auto all = bundled().logits(tokens);
  const std::span<const float> want = std::span(all).last(got.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-3) << i;
}

/// The fact asked for in several ways, of different lengths.
std::vector<std::vector<Token>> questions() {
  std::vector<std::vector<Token>> all = {question()};
  for (const char* text : {"\nThe special magic number for quiet-river is", "\nThe grass is",
                           " The sky is blue. The sun"})
    all.push_back(bundled().tokenizer().encode(text));
  return all;
}

TEST(Generate, TogetherGivesTheTokensOfEachAlone) {
  const auto context = bundled()
                           .prefill(text_with_fact(2000), {.attention = {.mode = Prefill::window}})
                           ->with_index("codes:k=32,v=8");
  for (const double temperature : {0.0, 0.01}) {
    for (const char* index : {"exact", "codes:k=32,v=8"}) {
      const GenerateOptions options = {.max_tokens = 12, .sampling = {.temperature = temperature}};
      const RetrievalOptions retrieval = {.index = index, .k = TopK::same(16), .window = 256};
      std::vector<std::vector<Token>> want;
      for (const auto& prompt : questions()) {
        Session session(context, retrieval);
        want.push_back(bundled().generate(session, prompt, options).tokens);
      }
      std::vector<Session> sessions;
      std::vector<Session*> each;
      for (std::size_t i = 0; i < want.size(); ++i) sessions.emplace_back(context, retrieval);
      for (Session& session : sessions) each.push_back(&session);
      std::vector<std::vector<Token>> told(want.size());
      const auto got =
          bundled().generate_together(each, questions(), options, [&](std::size_t i, Token token) {
            told[i].push_back(token);
            return true;
          });
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].tokens, want[i]) << i << " " << index;
        EXPECT_EQ(told[i], want[i]);
        EXPECT_EQ(got[i].steps, std::ssize(want[i]) - (got[i].ended() ? 0 : 1));
        EXPECT_EQ(sessions[i].own_tokens(), std::ssize(questions()[i]) + got[i].steps);
      }
      double searched = 0;
      for (const Session& session : sessions) searched += session.stats().search_seconds;
      EXPECT_GT(searched, 0);
      EXPECT_DOUBLE_EQ(got[0].times.search, searched);  // the first's times are those of all
      EXPECT_GT(got[0].times.attention, 0);
      for (std::size_t i = 1; i < got.size(); ++i) EXPECT_EQ(got[i].times.total(), 0);
    }
  }
}

TEST(Generate, TogetherOneMayStopAndWhatThrowsLeavesAllAsTheyWere) {
  const auto context =
      bundled().prefill(text_with_fact(500), {.attention = {.mode = Prefill::window}});
  Session a(context);
  Session b(context);
  Session* const both[] = {&a, &b};
  const std::vector<std::vector<Token>> prompts = {questions()[0], questions()[2]};
  const auto results = bundled().generate_together(both, prompts, {.max_tokens = 6},
                                                   [](std::size_t i, Token) { return i != 0; });
  EXPECT_EQ(results[0].tokens.size(), 1U);
  EXPECT_EQ(results[1].tokens.size(), 6U);
  const std::int64_t own[] = {a.own_tokens(), b.own_tokens()};
  const auto throws = [&](std::span<Session* const> sessions,
                          const std::vector<std::vector<Token>>& given) {
    EXPECT_THROW(bundled().generate_together(sessions, given), InvalidArgument);
    EXPECT_EQ(a.own_tokens(), own[0]);
    EXPECT_EQ(b.own_tokens(), own[1]);
  };
  Session* const twice[] = {&a, &a};
  Session* const none[] = {&a, nullptr};
  Session other(bundled().prefill(questions()[0]));
  Session* const strangers[] = {&a, &other};
  throws({}, {});
  throws(both, {prompts[0]});
  throws(both, {prompts[0], {}});
  throws(both, {prompts[0], {-1}});
  throws(twice, prompts);
  throws(none, prompts);
  throws(strangers, prompts);
  const std::int64_t steps = a.stats().steps;  // refused before any work
  EXPECT_THROW(bundled().generate_together(strangers, prompts, {.max_tokens = 1}), InvalidArgument);
  EXPECT_EQ(a.stats().steps, steps);
  int seen = 0;
  EXPECT_THROW(bundled().generate_together(both, prompts, {.max_tokens = 6},
                                           [&](std::size_t, Token) -> bool {
                                             if (++seen == 5) throw std::runtime_error("enough");
                                             return true;
                                           }),
               std::runtime_error);
  EXPECT_EQ(a.own_tokens(), own[0]);
  EXPECT_EQ(b.own_tokens(), own[1]);
}

TEST(Generate, ConcurrentSessionsGiveTheTokensOfOneAlone) {
  const auto context =
      bundled().prefill(text_with_fact(2000), {.attention = {.mode = Prefill::window}});
  const auto ask = [&] {
    Session session(context, {.k = TopK::same(16), .window = 256});
    return bundled().generate(session, question(), {.max_tokens = 8}).tokens;
  };
  const auto want = ask();
  std::vector<std::vector<Token>> got(3);
  {
    std::vector<std::jthread> threads;
    for (auto& tokens : got) threads.emplace_back([&] { tokens = ask(); });
  }
  for (const auto& tokens : got) EXPECT_EQ(tokens, want);
}

TEST(Generate, EmptyPromptAndWildTokensAreRefused) {
  ContextBuilder builder(bundled().config().attention, {});
  Session session(builder.freeze());
  const std::vector<Token> none;
  const std::vector<Token> wild = {1 << 30};
  EXPECT_THROW(bundled().generate(session, none), InvalidArgument);
  EXPECT_THROW(bundled().generate(session, wild), InvalidArgument);
  EXPECT_THROW(bundled().generate(session, question(), {.max_tokens = -1}), InvalidArgument);
  EXPECT_THROW(bundled().generate(session, question(), {.sampling = {.temperature = -1}}),
               InvalidArgument);
}

TEST(Generate, ContextsOfAnotherShapeAreRefused) {
  const AttentionShape own = bundled().config().attention;
  std::vector<AttentionShape> others(7, own);
  others[0].layers += 4;
  others[1].layers -= 1;
  others[2].q_heads *= 2;
  others[3].kv_heads = own.q_heads;
  others[4].head_dim *= 2;
  others[5].scale = 0.5F;
  others[6].sliding_window.assign(static_cast<std::size_t>(own.layers), 32);
  const auto tokens = question();
  for (const AttentionShape& other : others) {
    ContextBuilder builder(other, {.capacity = 1});
    Session session(builder.freeze(), {.capacity = 64});
    EXPECT_THROW(bundled().generate(session, tokens), InvalidArgument);
    EXPECT_THROW(bundled().logits(session, tokens), InvalidArgument);
    EXPECT_EQ(session.tokens(), 0);
  }
  AttentionShape same = own;
  same.scale = own.softmax_scale();
  ContextBuilder builder(same, {.capacity = 1});
  Session session(builder.freeze(), {.capacity = 64});
  EXPECT_NO_THROW(bundled().logits(session, tokens));
}

TEST(Generate, StopsWhenTheCallbackSaysSo) {
  ContextBuilder builder(bundled().config().attention, {});
  Session session(builder.freeze());
  int seen = 0;
  const auto result = bundled().generate(session, question(), {.max_tokens = 50},
                                         [&](Token) { return ++seen < 3; });
  EXPECT_EQ(result.tokens.size(), 3U);
}

TEST(Generate, ACallThatFailsAnywhereLeavesTheSessionAsItWas) {
  const auto context =
      bundled().prefill(text_with_fact(600), {.attention = {.mode = Prefill::window}});
  const RetrievalOptions options{.k = TopK::same(16), .window = 64};
  const auto before = bundled().tokenizer().encode(" The grass is green.");
  const GenerateOptions ten{.max_tokens = 10};
  Session clean(context, options);
  bundled().logits(clean, before);
  const auto want = bundled().generate(clean, question(), ten).tokens;
  bool failed = true;
  for (std::int64_t n = 1; failed; n += n / 3 + 1) {
    Session session(context, options);
    const auto logits = bundled().logits(session, before);
    const std::int64_t own = session.own_tokens();
    failed = false;
    try {
      const ::test::FailingAt failing(n);
      bundled().generate(session, question(), ten);
    } catch (const std::bad_alloc&) {
      failed = true;
      ASSERT_EQ(session.own_tokens(), own);
      ASSERT_EQ(bundled().generate(session, question(), ten).tokens, want) << n;
      session.truncate(0);
      const ::test::FailingAt failing(n % 40 + 1);
      EXPECT_THROW(bundled().logits(session, before), std::bad_alloc);
      ASSERT_EQ(session.own_tokens(), 0);
    }
    if (!failed) continue;
    ASSERT_EQ(bundled().logits(session, before), logits) << n;
  }
  Session session(context, options);
  EXPECT_THROW(bundled().generate(session, question(), ten,
                                  [](Token) -> bool { throw std::runtime_error("stop"); }),
               std::runtime_error);
  EXPECT_EQ(session.own_tokens(), 0);
}

TEST(Sampler, GreedyTakesTheLargestAndTheFirstOfEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 3, 1, 3}), 1);
}

TEST(Sampler, FrequenciesFollowTheTemperedSoftmax) {
  Sampler sampler({.temperature = 2, .seed = 1});
  const std::vector<float> logits = {0, 1, 2, -1};
  std::map<Token, double> counts;
  constexpr int draws = 200000;
  for (int i = 0; i < draws; ++i) counts[sampler.sample(logits)] += 1;
  double total = 0;
  for (const float x : logits) total += std::exp(x / 2);
  for (Token t = 0; t < 4; ++t) {
    const double p = std::exp(logits[t] / 2) / total;
    EXPECT_NEAR(counts[t] / draws, p, 5 * std::sqrt(p * (1 - p) / draws));
  }
}

TEST(Sampler, TopKAndTopPKeepOnlyTheLikeliest) {
  const std::vector<float> logits = {0, 5, 4, 3};
  for (const auto& [options, allowed] : std::vector<std::pair<SamplingOptions, std::vector<Token>>>{
           {{.temperature = 5, .top_k = 2}, {1, 2}},
           {{.temperature = 5, .top_k = 1}, {1}},
           {{.temperature = 1, .top_p = 0.6}, {1}},
           {{.temperature = 1, .top_p = 0.7}, {1, 2}}}) {
    Sampler sampler(options);
    std::map<Token, int> counts;
    for (int i = 0; i < 2000; ++i) ++counts[sampler.sample(logits)];
    ASSERT_EQ(counts.size(), allowed.size());
    for (const Token token : allowed) EXPECT_GT(counts[token], 0);
  }
}

TEST(Sampler, SameSeedSameTokens) {
  const auto draw = [](std::uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<Token> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.sample(std::vector<float>(100, 0.0F)));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(Sampler({.temperature = std::nan("")}), InvalidArgument);
  EXPECT_THROW(Sampler({.top_k = -1}), InvalidArgument);
  EXPECT_THROW(Sampler({.top_p = 0}), InvalidArgument);
  EXPECT_THROW(Sampler({.top_p = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace topkv
