// Answers as text, where they end, and what the model gave for their tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/core/text/utf8.h"
#include "src/model/generate/answer_text.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

const Model& bundled_model() {
  static const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  return model;
}

/// Of a text that is given as pieces, each the bytes of one token.
std::vector<Token> tokens_of(const std::string& text) {
  return bundled_model().tokenizer().encode(text);
}

/// The pieces that are given out, and the rest.
std::vector<std::string> pieces(const std::vector<Token>& tokens,
                                const std::vector<std::string>& stop, bool* stopped = nullptr) {
  AnswerText text(bundled_model().tokenizer(), stop);
  std::vector<std::string> all;
  for (const Token token : tokens) {
    all.push_back(text.push(token));
    if (text.stopped()) break;
  }
  if (stopped != nullptr) *stopped = text.stopped();
  all.push_back(text.finish());
  return all;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  return all;
}

TEST(AnswerText, EndsBeforeTheFirstStopTextHoweverTokensCutIt) {
  const std::string text = "The sky is blue. Grün und 山川 and xyxyz more.";
  const auto tokens = tokens_of(text);
  ASSERT_GT(tokens.size(), 12U);
  // Each part of the text as the stop text: what is before its first place is given out.
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const std::size_t length : {1, 2, 5, 11}) {
      const std::string stop = text.substr(at, length);
      if (valid_utf8_bytes(stop) != stop.size()) continue;
      bool stopped = false;
      const auto got = pieces(tokens, {"not there", stop}, &stopped);
      EXPECT_TRUE(stopped) << stop;
      EXPECT_EQ(joined(got), text.substr(0, text.find(stop))) << stop;
      for (const std::string& piece : got) EXPECT_EQ(valid_utf8_bytes(piece), piece.size());
    }
  }
}

TEST(AnswerText, WhatMayBeAStopTextIsHeldBackUntilItIsNone) {
  std::vector<Token> letters;
  for (const char* one : {"a", "b", "a", "b", "a", "c", "a", "b"})
    letters.push_back(tokens_of(one)[0]);
  bool stopped = true;
  EXPECT_EQ(pieces(letters, {"abac!"}, &stopped),
            (std::vector<std::string>{"", "", "", "ab", "", "", "abac", "", "ab"}));
  EXPECT_FALSE(stopped);
  EXPECT_EQ(joined(pieces(letters, {"abac!"})), "ababacab");
  EXPECT_EQ(joined(pieces(letters, {"abac"}, &stopped)), "ab");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(joined(pieces(letters, {"bac", "ba"})), "a") << "the first place counts";
}

// Special tokens have no text, so that a stop text with one in it was never found.
TEST(AnswerText, AStopTextMaySpellSpecialTokens) {
  std::vector<Token> tokens = tokens_of("ab");
  const std::size_t before = tokens.size();
  tokens.push_back(bundled_model().tokenizer().find("<|bos|>"));
  for (const Token token : tokens_of("cd")) tokens.push_back(token);
  bool stopped = false;
  EXPECT_EQ(joined(pieces(tokens, {"<|bos|>"}, &stopped)), "ab");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(joined(pieces(tokens, {"b<|bos|>c"}, &stopped)), "a");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(joined(pieces(tokens, {"x", "<|bos|>", "d"}, &stopped)), "ab");
  for (const char* other :
       {"bos", "|>", "a<|bos|>", "<|bos|>d", "<|eos|>", "<|bos|><|bos|>", "<|bos"}) {
    EXPECT_EQ(joined(pieces(tokens, {other}, &stopped)), "abcd") << other;
    EXPECT_FALSE(stopped) << other;
  }
  EXPECT_EQ(joined(pieces(tokens_of("a<|b"), {"<|bos|>"}, &stopped)), "a<|b") << "text alone";
  // Where it is spelled, too.
  const std::vector<Token> spelled = {tokens[before]};
  const std::vector<std::string> stop = {"os|>c"};
  AnswerText text(bundled_model().tokenizer(), stop, spelled);
  std::string all;
  for (const Token token : tokens) all += text.push(token);
  EXPECT_EQ(all + text.finish(), "ab<|bos|>cd") << "a stop text begins in no special token";
}

class Answers : public testing::Test {
 protected:
  Answers()
      : context_(bundled_model().prefill(tokens_of("The grass is green. The sky is blue."),
                                         {.kv_dtype = DType::f32})) {}

  GenerateResult ask(const GenerateOptions& options, const TokenFn& on_token = {},
                     const TextFn& on_text = {}) const {
    Session session(context_);
    return bundled_model().generate(session, tokens_of(" The sun is"), options, on_token, on_text);
  }

  std::shared_ptr<const Context> context_;
};

TEST_F(Answers, TextIsToldInWholeCharactersAndIsThatOfTheTokens) {
  std::string told;
  std::vector<std::size_t> after;  // bytes told as tokens come
  const GenerateResult result = ask(
      {.max_tokens = 20},
      [&](Token) {
        after.push_back(told.size());
        return true;
      },
      [&](std::string_view piece) {
        EXPECT_EQ(valid_utf8_bytes(piece), piece.size());
        EXPECT_FALSE(piece.empty());
        told += piece;
        return true;
      });
  EXPECT_EQ(told, result.text);
  EXPECT_GT(after.back(), 0U) << "as it grows";
  std::string bytes;
  for (const Token token : result.tokens)
    bytes += bundled_model().tokenizer().bytes_of_token(token);
  EXPECT_EQ(told, replace_invalid_utf8(bytes));
  EXPECT_EQ(result.finish, result.tokens.size() == 20 ? Finish::length : Finish::end_token);
  EXPECT_EQ(ask({.max_tokens = 20}).text, "") << "nobody asked for it";
}

TEST_F(Answers, EndAtAStopText) {
  const std::string whole = ask({.max_tokens = 20, .stop = {"not there"}}).text;
  ASSERT_GT(whole.size(), 12U);
  const std::string stop = whole.substr(6, 4);
  std::string told;
  const GenerateResult result =
      ask({.max_tokens = 20, .stop = {stop}}, {}, [&](std::string_view piece) {
        told += piece;
        return true;
      });
  EXPECT_EQ(result.finish, Finish::stop_text);
  EXPECT_FALSE(result.ended());
  EXPECT_EQ(result.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(told, result.text);
  EXPECT_EQ(result.steps, std::ssize(result.tokens) - 1);
}

TEST_F(Answers, SayWhyTheyEnded) {
  EXPECT_EQ(ask({.max_tokens = 0}).finish, Finish::length);
  EXPECT_EQ(ask({.max_tokens = 2}).finish, Finish::length);
  EXPECT_EQ(ask({.max_tokens = 9}, [](Token) { return false; }).finish, Finish::caller);
  const auto silent = ask({.max_tokens = 9}, {}, [](std::string_view) { return false; });
  EXPECT_EQ(silent.finish, Finish::caller);
  EXPECT_LT(silent.tokens.size(), 9U);
  EXPECT_EQ(name_of(Finish::end_token), "end_token");
  EXPECT_EQ(name_of(Finish::stop_text), "stop_text");
}

TEST_F(Answers, LogprobsAreOfTheModelsOwnDistribution) {
  for (const double temperature : {0.0, 1.5}) {
    const SamplingOptions sampling = {
        .temperature = temperature, .top_k = 4, .seed = 3, .repetition_penalty = 1.3};
    std::vector<TokenLogprobs> told;
    const GenerateResult result = ask(
        {.max_tokens = 6, .sampling = sampling, .logprobs = 3, .on_logprobs = [&](const auto& one) {
           told.push_back(one);
         }});
    ASSERT_EQ(result.logprobs.size(), result.tokens.size());
    EXPECT_EQ(told.size(), result.tokens.size());
    // The logits of the same tokens, fed to another session.
    std::vector<Token> fed = tokens_of(" The sun is");
    const std::size_t prompt = fed.size();
    fed.insert(fed.end(), result.tokens.begin(), result.tokens.end());
    Session session(context_);
    const auto logits = bundled_model().logits(session, fed);
    const auto width = static_cast<std::size_t>(bundled_model().config().vocab_size);
    for (std::size_t i = 0; i < result.tokens.size(); ++i) {
      const float* row = logits.data() + (prompt - 1 + i) * width;
      double sum = 0;
      for (std::size_t t = 0; t < width; ++t) sum += std::exp(double{row[t]});
      std::vector<double> want;
      for (std::size_t t = 0; t < width; ++t) want.push_back(double{row[t]} - std::log(sum));
      const TokenLogprobs& got = result.logprobs[i];
      EXPECT_EQ(got.chosen.token, result.tokens[i]);
      EXPECT_NEAR(got.chosen.logprob, want[static_cast<std::size_t>(got.chosen.token)], 1e-3);
      ASSERT_EQ(got.top.size(), 3U);
      std::ranges::sort(want, std::greater<>());
      for (std::size_t n = 0; n < 3; ++n) EXPECT_NEAR(got.top[n].logprob, want[n], 1e-3);
    }
  }
  EXPECT_TRUE(ask({.max_tokens = 3}).logprobs.empty());
}

TEST_F(Answers, PromptsHaveLogprobsOfTheirOwnTokensHoweverTheyAreCut) {
  std::string text = " The sun is";
  while (tokens_of(text).size() < 300)
    text += " yellow. Here we go. There and back again. The sun is";
  for (const std::string& asked : {text, std::string(" The sun is"), std::string(" The")}) {
    const std::vector<Token> prompt = tokens_of(asked);
    Session fed(context_);
    const auto logits = bundled_model().logits(fed, prompt);
    const auto width = static_cast<std::size_t>(bundled_model().config().vocab_size);
    Session session(context_);
    std::vector<Token> told;
    const GenerateResult result = bundled_model().generate(
        session, prompt,
        {.max_tokens = 0, .prompt_logprobs = 2, .on_prompt_logprobs = [&](const auto& one) {
           told.push_back(one.chosen.token);
         }});
    EXPECT_EQ(told, std::vector<Token>(prompt.begin() + 1, prompt.end()));
    ASSERT_EQ(result.prompt_logprobs.size(), prompt.size() - 1);
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
      const float* row = logits.data() + i * width;
      double sum = 0;
      for (std::size_t t = 0; t < width; ++t) sum += std::exp(double{row[t]});
      const TokenLogprobs& got = result.prompt_logprobs[i];
      EXPECT_EQ(got.chosen.token, prompt[i + 1]);
      EXPECT_NEAR(got.chosen.logprob, row[prompt[i + 1]] - std::log(sum), 1e-3);
      ASSERT_EQ(got.top.size(), 2U);
      EXPECT_NEAR(got.top[0].logprob, *std::max_element(row, row + width) - std::log(sum), 1e-3);
    }
  }
  EXPECT_TRUE(ask({.max_tokens = 1, .logprobs = 0}).prompt_logprobs.empty());
}

TEST_F(Answers, ThatEndWithAnEndTokenHaveItsLogprob) {
  const Token end = bundled_model().config().eos.at(0);
  const GenerateResult result =
      ask({.max_tokens = 4, .sampling = {.logit_bias = {{end, 100}}}, .logprobs = 1});
  EXPECT_EQ(result.finish, Finish::end_token);
  EXPECT_TRUE(result.tokens.empty());
  ASSERT_TRUE(result.end_logprobs);
  EXPECT_EQ(result.end_logprobs->chosen.token, end);
  EXPECT_LT(result.end_logprobs->chosen.logprob, result.end_logprobs->top.at(0).logprob)
      << "of the model's own distribution, before the bias";
  EXPECT_FALSE(ask({.max_tokens = 4, .logprobs = 1}).end_logprobs);
}

TEST_F(Answers, BiasesChooseAndForbidTokensInGreedyAnswersToo) {
  const Token first = ask({.max_tokens = 1}).tokens.at(0);
  const GenerateResult without =
      ask({.max_tokens = 8, .sampling = {.logit_bias = {{first, -100}}}});
  EXPECT_EQ(std::ranges::count(without.tokens, first), 0);
  const Token other = first == 70 ? 71 : 70;
  const GenerateResult only = ask({.max_tokens = 5, .sampling = {.logit_bias = {{other, 100}}}});
  EXPECT_EQ(only.tokens, std::vector<Token>(5, other));
}

TEST_F(Answers, OfABatchHaveOptionsOfTheirOwn) {
  const std::string whole = ask({.max_tokens = 16, .stop = {"not there"}}).text;
  const GenerateOptions different[] = {
      {.max_tokens = 16, .stop = {whole.substr(5, 3)}},
      {.max_tokens = 12, .logprobs = 2},
      {.max_tokens = 14, .sampling = {.repetition_penalty = 1.4}},
      {.max_tokens = 10, .sampling = {.temperature = 1, .seed = 5, .min_p = 0.2}},
      {.max_tokens = 9,
       .sampling = {.frequency_penalty = 0.8, .presence_penalty = 0.5},
       .prompt_logprobs = 1}};
  std::vector<Session> sessions;
  for (int i = 0; i < 5; ++i) sessions.emplace_back(context_);
  GenerationBatch batch(bundled_model());
  for (std::size_t i = 0; i < 5; ++i)
    batch.add(sessions[i], tokens_of(" The sun is"), different[i]);
  std::size_t left = 5;
  while (batch.size() > 0) {
    for (const auto& [id, result, error] : batch.step()) {
      ASSERT_FALSE(error);
      const GenerateResult want = ask(different[id]);
      EXPECT_EQ(result.tokens, want.tokens) << id;
      EXPECT_EQ(result.text, want.text);
      EXPECT_EQ(result.finish, want.finish);
      EXPECT_EQ(result.prompt_logprobs.size(), want.prompt_logprobs.size());
      ASSERT_EQ(result.logprobs.size(), want.logprobs.size());
      for (std::size_t n = 0; n < want.logprobs.size(); ++n)
        EXPECT_NEAR(result.logprobs[n].chosen.logprob, want.logprobs[n].chosen.logprob, 1e-3);
      --left;
    }
  }
  EXPECT_EQ(left, 0U);
}

TEST_F(Answers, RepetitionPenaltyCountsTokensBeforeThePrompt) {
  const GenerateOptions plain = {.max_tokens = 1, .sampling = {.repetition_penalty = 50}};
  const Token first = ask(plain).tokens.at(0);
  GenerateOptions before = plain;
  before.before = {first};
  EXPECT_NE(ask(before).tokens.at(0), first);
}

TEST_F(Answers, SeveralAreToldByNumber) {
  Session a(context_);
  Session b(context_);
  Session* const both[] = {&a, &b};
  const std::vector<std::vector<Token>> prompts = {tokens_of(" The sun is"),
                                                   tokens_of(" The sky is")};
  std::string told[2];
  const auto results = bundled_model().generate_together(
      both, prompts, {.max_tokens = 8}, {}, [&](std::size_t i, std::string_view piece) {
        told[i] += piece;
        return true;
      });
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GT(told[i].size(), 0U);
    EXPECT_EQ(told[i], results[i].text);
  }
}

TEST_F(Answers, OptionsThatCannotBeAreRefused) {
  EXPECT_THROW(ask({.stop = {"a", ""}}), InvalidArgument);
  EXPECT_THROW(ask({.stop = {"\xff"}}), InvalidArgument);
  EXPECT_THROW(ask({.logprobs = 21}), InvalidArgument);
  EXPECT_THROW(ask({.logprobs = -2}), InvalidArgument);
  EXPECT_THROW(ask({.before = {-1}}), InvalidArgument);
  EXPECT_THROW(ask({.prompt_logprobs = 21}), InvalidArgument);
  for (const Token token : {Token{-1}, static_cast<Token>(bundled_model().config().vocab_size)})
    EXPECT_THROW(ask({.sampling = {.logit_bias = {{token, 1}}}}), InvalidArgument);
  const TempDirectory temp;
  temp.write("config.json", config_of({}).dump());
  temp.write("model.safetensors", file_of(random_tensors({})));
  const Model bare = Model::load(temp.path());
  Session session(bare.prefill(some_tokens(10, 101)));
  EXPECT_THROW(bare.generate(session, some_tokens(3, 101), {.stop = {"a"}}), FileError);
  EXPECT_EQ(session.own_tokens(), 0);
}

}  // namespace
}  // namespace topkv
