// What `topkv perplexity` measures: with dense attention what a forward pass over the whole piece
// gives, the same where every key is retrieved, and less where few are.
#include "src/eval/run/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/eval/report/perplexity_lines.h"
#include "topkv/model.h"

namespace topkv {
namespace {

constexpr std::int64_t length = 400;
constexpr std::int64_t scored = 24;

/// Of two pieces of a text of words that come again.
std::vector<Token> piece(const Tokenizer& tokenizer, std::int64_t first) {
  std::string text;
  for (std::int64_t i = first; i < first + length; ++i)
    text += (i % 3 == 0 ? " the" : i % 7 == 0 ? " grass" : " number") + std::to_string(i * i % 91);
  std::vector<Token> tokens = tokenizer.encode(text);
  tokens.resize(length);
  return tokens;
}

class PerplexityOfTheBundledModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<Model>(Model::load(TOPKV_SOURCE_DIR "/models/needle-14m"));
    pieces_ = {piece(model_->tokenizer(), 0), piece(model_->tokenizer(), 5000)};
  }
  static void TearDownTestSuite() { model_.reset(); }

  static PerplexityReport measured(const std::vector<RetrievalOptions>& options) {
    std::vector<Perplexity> settings;
    for (const RetrievalOptions& one : options) settings.push_back({.options = one, .k = "k"});
    PerplexityRun run(*model_, std::move(settings));
    for (const std::vector<Token>& tokens : pieces_) {
      const std::span all(tokens);
      const std::size_t read = length - scored - 1;
      const auto context = model_->prefill(all.first(read), {.kv_dtype = DType::f32})
                               ->with_index("hnsw:M=4,efc=20,ef=0");
      std::int64_t told = 0;
      run.add(context, all.subspan(read), [&](std::int64_t fed) { EXPECT_EQ(fed, told++); });
      EXPECT_EQ(told, scored * (std::ssize(options) + 1));
    }
    return run.report();
  }

  static inline std::unique_ptr<Model> model_;
  static inline std::vector<std::vector<Token>> pieces_;
};

TEST_F(PerplexityOfTheBundledModel, IsThatOfAForwardPassOverTheWholePiece) {
  const PerplexityReport report =
      measured({{.k = TopK::same(100000), .window = 8},
                {.k = TopK::same(2), .window = 8},
                {.index = "hnsw:M=4,efc=20,ef=0", .k = TopK::same(2), .window = 8}});
  EXPECT_EQ(report.pieces, 2);
  EXPECT_EQ(report.scored, scored);
  ASSERT_EQ(std::ssize(report.dense.nats), 2 * scored);
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  const PredictionDifference& few = report.settings[1].predictions;
  ASSERT_EQ(std::ssize(few.delta_p), 2 * scored);
  for (std::size_t i = 0; i < few.delta_p.size(); ++i) {
    const double p = std::exp(-report.settings[1].nats[i]) - std::exp(-report.dense.nats[i]);
    EXPECT_NEAR(few.delta_p[i], p, 1e-12) << i;
  }
  EXPECT_GT(spread_of(few.kl).mean, 1e-3);
  const PredictionDifference& all_found = report.settings[0].predictions;
  EXPECT_LT(spread_of(all_found.kl).most, 1e-6);
  EXPECT_EQ(all_found.same_top, 2 * scored);
  double sum = 0;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const std::vector<float> logits = model_->logits(pieces_[p]);
    for (std::size_t i = 0; i < scored; ++i) {
      const std::size_t token = length - scored + i;
      const float* row = logits.data() + (token - 1) * vocabulary;
      double all = 0;
      for (std::size_t id = 0; id < vocabulary; ++id) all += std::exp(static_cast<double>(row[id]));
      const double nats = std::log(all) - row[pieces_[p][token]];
      EXPECT_NEAR(report.dense.nats[p * scored + i], nats, 1e-3) << p << ", " << i;
      sum += nats;
    }
  }
  EXPECT_NEAR(report.dense.mean(), sum / (2 * scored), 1e-4);
  EXPECT_NEAR(report.dense.perplexity(), std::exp(sum / (2 * scored)), 0.01);
  // Every key retrieved.
  EXPECT_NEAR(difference(report.settings[0], report).mean, 0, 1e-4);
  EXPECT_NEAR(report.settings[0].rows, length - scored - 1 - 4, 8);
  // Two of them.
  EXPECT_GT(std::abs(difference(report.settings[1], report).mean), 0.01);
  EXPECT_EQ(report.settings[1].rows, 2);
  EXPECT_GT(report.settings[1].bytes_read.value(), 0);
  EXPECT_LT(report.settings[1].bytes_read.value(), report.settings[0].bytes_read.value());
  EXPECT_GT(report.dense.bytes_read.value(), 0);
  EXPECT_FALSE(report.settings[2].bytes_read) << "a graph does not tell";
}

/// Of three pieces of two tokens.
PerplexityReport three_pieces() {
  PerplexityReport report{.pieces = 3, .scored = 2};
  report.dense.nats = {1, 2, 3, 4, 5, 6};
  report.dense.seconds = 2;
  report.settings.push_back({.options = {.tail = "none"}, .k = "64"});
  report.settings[0].nats = {1.5, 2.5, 3, 4, 6, 7};
  report.settings[0].seconds = 1;
  report.settings[0].predictions = {
      .kl = {0.5, 0, 0.1, 0.2, 0.4, 0.3}, .delta_p = {-0.1, 0.1, 0, 0, 0.2, -0.2}, .same_top = 3};
  return report;
}

TEST(PerplexityDifference, IsPairedPieceByPiece) {
  const PerplexityReport report = three_pieces();
  const PerplexityDifference worse = difference(report.settings[0], report);
  EXPECT_DOUBLE_EQ(worse.mean, 0.5);
  // Of 0.5, 0 and 1: a standard error of 0.5 / sqrt(3), two degrees of freedom.
  ASSERT_TRUE(worse.interval);
  EXPECT_NEAR(worse.interval->high, 0.5 + 4.30265 * 0.5 / std::sqrt(3.0), 1e-5);
  EXPECT_NEAR(worse.interval->low, 0.5 - 4.30265 * 0.5 / std::sqrt(3.0), 1e-5);
  EXPECT_FALSE(difference(report.dense, report).interval);
  PerplexityReport one = report;
  one.pieces = 1;
  EXPECT_DOUBLE_EQ(difference(one.settings[0], one).mean, 0.5);
  EXPECT_FALSE(difference(one.settings[0], one).interval);
}

TEST(Likelihood, DivergenceOfWhatIsNoNumberIsNone) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const double never = -std::numeric_limits<double>::infinity();
  const std::vector<double> even = {std::log(0.5), std::log(0.5)};
  EXPECT_TRUE(std::isnan(divergence<double>(even, {none, none})));
  EXPECT_TRUE(std::isnan(divergence<double>({none, none}, even)));
  EXPECT_EQ(divergence(even, even), 0);
  EXPECT_NEAR(divergence<double>({0, never}, even), std::log(2), 1e-12);
}

// The definitions of llama-perplexity --kl-divergence: KL of the found prediction from the base,
// and the change of the probability of the text's token.
TEST(PredictionDifference, IsOfTheFoundPredictionFromDenseAttentions) {
  const double half = std::log(0.5);
  const double quarter = std::log(0.25);
  PredictionDifference differs;
  differs.add({half, quarter, quarter}, {quarter, std::log(0.625), std::log(0.125)}, 0);
  differs.add({quarter, half, quarter}, {quarter, half, quarter}, 2);
  ASSERT_EQ(differs.kl.size(), 2U);
  EXPECT_NEAR(differs.kl[0], 0.5 * std::log(2) + 0.25 * std::log(0.4) + 0.25 * std::log(2), 1e-15);
  EXPECT_EQ(differs.kl[1], 0);
  EXPECT_NEAR(differs.delta_p[0], -0.25, 1e-15);
  EXPECT_NEAR(differs.mean_delta_p(), -0.125, 1e-15);
  EXPECT_NEAR(differs.rms_delta_p(), 0.25 / std::sqrt(2), 1e-15);
  EXPECT_EQ(differs.agreement(), 0.5);
}

TEST(PerplexitySpread, InterpolatesBetweenNeighbours) {
  const Spread of = spread_of({0.5, 0, 0.1, 0.2, 0.4, 0.3});
  EXPECT_DOUBLE_EQ(of.mean, 0.25);
  EXPECT_DOUBLE_EQ(of.median, 0.25);
  EXPECT_DOUBLE_EQ(of.p90, 0.45);
  EXPECT_DOUBLE_EQ(of.p95, 0.475);
  EXPECT_DOUBLE_EQ(of.p99, 0.495);
  EXPECT_EQ(of.most, 0.5);
  const Spread one = spread_of({2});
  EXPECT_EQ(one.median, 2);
  EXPECT_EQ(one.most, 2);
}

TEST(PerplexityLines, AreOfDenseAttentionAndOfEachSetting) {
  const PerplexityReport report = three_pieces();
  const auto lines = perplexity_json(report, {10, "bf16", "dense", "stored", "host", "0.1.0"});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("setting"), "dense");
  EXPECT_TRUE(lines[0].at("kv_topk").is_null());
  EXPECT_TRUE(lines[0].at("difference").is_null());
  EXPECT_EQ(lines[0].at("nats"), 3.5);
  EXPECT_EQ(lines[0].at("tokens_per_second"), 3);
  EXPECT_EQ(lines[1].at("setting"), "exact, top 64, tail none");
  EXPECT_EQ(lines[1].at("difference"), 0.5);
  EXPECT_TRUE(lines[0].at("kl_mean").is_null());
  EXPECT_DOUBLE_EQ(lines[1].at("kl_mean"), 0.25);
  EXPECT_DOUBLE_EQ(lines[1].at("delta_p_mean"), 0);
  EXPECT_DOUBLE_EQ(lines[1].at("delta_p_rms"), std::sqrt(0.1 / 6));
  EXPECT_EQ(lines[1].at("same_top"), 0.5);
  EXPECT_TRUE(lines[1].at("bytes_read").is_null());
  const std::vector<Token> ids = {7, 8, 9, 10, 11, 12};
  EXPECT_EQ(token_csv(report, 10, ids),
            "piece,token,id,dense,\"exact, top 64, tail none\"\n"
            "0,8,7,1,1.5\n0,9,8,2,2.5\n1,8,9,3,3\n1,9,10,4,4\n2,8,11,5,6\n2,9,12,6,7\n");
}

}  // namespace
}  // namespace topkv
