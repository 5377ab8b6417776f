// Penalties and filters, by their definitions in float64; bindings/tests compares them with
// transformers' own.
#include "src/model/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "src/model/generate/logprobs.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::map<Token, double> distribution(Sampler& sampler, const std::vector<float>& logits) {
  std::map<Token, double> shares;
  double total = 0;
  for (const Sampler::Candidate& one : sampler.candidates(logits)) total += one.weight;
  for (const Sampler::Candidate& one : sampler.candidates(logits))
    shares[one.token] = one.weight / total;
  return shares;
}

TEST(Sampler, MinPKeepsWhatIsLikelyBesideTheLikeliest) {
  const std::vector<float> logits = {0, 2, 1.9F, -3, 1};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    Sampler sampler({.temperature = temperature, .min_p = 0.3});
    const auto shares = distribution(sampler, logits);
    double total = 0;
    for (const auto& [token, share] : shares) total += std::exp(logits[token] / temperature);
    for (Token t = 0; t < 5; ++t) {
      const double beside = std::exp((logits[t] - 2) / temperature);
      ASSERT_EQ(shares.count(t), beside >= 0.3 ? 1U : 0U) << temperature << " " << t;
      if (beside >= 0.3) {
        EXPECT_NEAR(shares.at(t), std::exp(logits[t] / temperature) / total, 1e-12);
      }
    }
  }
  Sampler all({.temperature = 1, .min_p = 1});
  EXPECT_EQ(distribution(all, logits).size(), 1U);
}

TEST(Sampler, PenaltiesAreSubtractedAndDivided) {
  const std::vector<float> logits = {2, -1, 0.5F, 3, 0};
  Sampler sampler({.temperature = 1,
                   .repetition_penalty = 1.5,
                   .frequency_penalty = 0.25,
                   .presence_penalty = 0.5});
  sampler.read(std::vector<Token>{0, 1, 1}, 5);
  sampler.answer(3);
  sampler.answer(3);
  sampler.answer(1);
  const double want[] = {2 / 1.5, -1 * 1.5 - 0.25 - 0.5, 0.5, 3 / 1.5 - 2 * 0.25 - 0.5, 0};
  double total = 0;
  for (const double x : want) total += std::exp(x);
  const auto shares = distribution(sampler, logits);
  for (Token t = 0; t < 5; ++t) EXPECT_NEAR(shares.at(t), std::exp(want[t]) / total, 1e-6) << t;
}

TEST(Sampler, BiasesAreAddedBeforePenalties) {
  const std::vector<float> logits = {2, -1, 0.5F, 3};
  Sampler sampler({.temperature = 1,
                   .repetition_penalty = 2,
                   .logit_bias = {{0, -5}, {1, 2}, {1, 0.5}, {3, -10}}});
  sampler.read(std::vector<Token>{0, 1}, 4);
  const double want[] = {(2 - 5) * 2.0, (-1 + 2 + 0.5) / 2, 0.5, 3 - 10};
  double total = 0;
  for (const double x : want) total += std::exp(x);
  const auto shares = distribution(sampler, logits);
  for (Token t = 0; t < 4; ++t) EXPECT_NEAR(shares.at(t), std::exp(want[t]) / total, 1e-6) << t;
  Sampler greedy({.logit_bias = {{1, 4.5}}});
  EXPECT_TRUE(greedy.needs_logits());
  EXPECT_EQ(greedy.sample(logits), 1);
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THROW(Sampler({.logit_bias = {{0, infinite}}}), InvalidArgument);
  EXPECT_THROW(Sampler({.logit_bias = {{0, std::nan("")}}}), InvalidArgument);
}

TEST(Sampler, GreedyIsPenalisedToo) {
  Sampler sampler({.repetition_penalty = 2});
  EXPECT_TRUE(sampler.needs_logits());
  sampler.read(std::vector<Token>{1}, 3);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}), 2);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1, -0.75F, -1.75F}), 0);
  EXPECT_FALSE(Sampler({}).needs_logits());
}

TEST(Sampler, PenaltiesBeyondWhatAFloatHoldsLeaveADistribution) {
  constexpr Token tokens = 40;
  const std::vector<float> logits(tokens, 3);
  for (const double penalty : {-1e300, 1e300}) {
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 1, .frequency_penalty = penalty},
          SamplingOptions{.temperature = 1, .presence_penalty = penalty},
          SamplingOptions{.temperature = 1, .repetition_penalty = std::exp2(-900)}}) {
      Sampler sampler(options);
      sampler.read({}, tokens);
      for (Token token = 0; token < tokens; token += 2) sampler.answer(token);
      double total = 0;
      for (const auto& [token, share] : distribution(sampler, logits)) {
        ASSERT_FALSE(std::isnan(share)) << token;
        const bool liked = options.repetition_penalty < 1 || penalty < 0;
        EXPECT_NEAR(share, liked == (token % 2 == 0) ? 0.05 : 0, 1e-12) << token;
        total += share;
      }
      EXPECT_NEAR(total, 1, 1e-12);
    }
  }
}

TEST(Sampler, PenaltiesAndMinPOutOfRangeAreRefused) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THROW(Sampler({.min_p = -0.1}), InvalidArgument);
  EXPECT_THROW(Sampler({.min_p = 1.1}), InvalidArgument);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), InvalidArgument);
  EXPECT_THROW(Sampler({.repetition_penalty = infinite}), InvalidArgument);
  EXPECT_THROW(Sampler({.frequency_penalty = std::nan("")}), InvalidArgument);
  EXPECT_THROW(Sampler({.presence_penalty = -infinite}), InvalidArgument);
}

TEST(Logprobs, AreThoseOfTheSoftmaxTheLikeliestFirst) {
  const std::vector<float> logits = {1, 900, 899, 900, -2};
  const double sum = std::log(2 + std::exp(-1.0) + std::exp(-899.0) + std::exp(-902.0));
  const TokenLogprobs got = logprobs_of(logits, 2, 3);
  EXPECT_EQ(got.chosen.token, 2);
  EXPECT_NEAR(got.chosen.logprob, -1 - sum, 1e-12);
  ASSERT_EQ(got.top.size(), 3U);
  EXPECT_EQ(got.top[0].token, 1);
  EXPECT_EQ(got.top[1].token, 3);
  EXPECT_EQ(got.top[2].token, 2);
  EXPECT_NEAR(got.top[1].logprob, -sum, 1e-12);
  EXPECT_EQ(logprobs_of(logits, 0, 20).top.size(), 5U);
  EXPECT_TRUE(logprobs_of(logits, 0, 0).top.empty());
}

}  // namespace
}  // namespace topkv
