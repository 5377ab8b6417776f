// What `topkv fidelity` measures: nothing where everything is attended, and less where more is.
#include "src/eval/run/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "topkv/model.h"

namespace topkv {
namespace {

class FidelityOfTheBundledModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<Model>(Model::load(TOPKV_SOURCE_DIR "/models/needle-14m"));
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < 2048; ++i) tokens.push_back(text_token(i));
    context_ = model_->prefill(tokens)->with_index("codes:k=16,v=8")->with_index("mean");
  }
  static void TearDownTestSuite() {
    context_.reset();
    model_.reset();
  }

  static Token text_token(std::int64_t i) {
    return static_cast<Token>(300 + (i * i + i / 7) % 1500);
  }

  Fidelity of(const RetrievalOptions& options) const {
    std::vector<Probe> probes(2);
    for (std::int64_t i = 0; i < 24; ++i) {
      probes[0].push_back(text_token(5000 + i));
      probes[1].push_back(text_token(9000 + 3 * i));
    }
    return measure_fidelity(*model_, context_, probes, {{.options = options, .k = "k"}}, {})
        .settings.front();
  }

  static inline std::unique_ptr<Model> model_;
  static inline std::shared_ptr<const Context> context_;
};

TEST_F(FidelityOfTheBundledModel, NothingIsLostWhereEveryRowIsAttended) {
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    const Fidelity all = of({.index = index, .k = TopK::same(10000), .window = 64});
    EXPECT_EQ(all.tokens, 48);
    EXPECT_LT(all.error_p90, 1e-4) << index;
    EXPECT_LT(all.kl.most, 1e-3) << index;
    EXPECT_EQ(all.agreement, 1) << index;
    EXPECT_NEAR(all.mass.value(), 1, 1e-4) << index;
    EXPECT_EQ(all.recall.value(), 1) << index;
    EXPECT_GT(all.rows, 1900) << index;
  }
}

TEST_F(FidelityOfTheBundledModel, MoreRowsAndATailAreNearer) {
  const Fidelity few = of({.k = TopK::same(4), .window = 32});
  const Fidelity more = of({.k = TopK::same(512), .window = 32});
  const Fidelity tail = of({.k = TopK::same(4), .tail = "codes:k=16,v=8", .window = 32});
  EXPECT_EQ(few.layer_error.size(), 8U);
  EXPECT_GT(few.error_mean, 0.05);
  EXPECT_LT(more.error_mean, few.error_mean);
  EXPECT_GT(more.mass.value(), few.mass.value());
  EXPECT_NEAR(few.rows, 4, 1e-9);
  EXPECT_LT(tail.error_mean, few.error_mean / 2);
  EXPECT_LT(tail.kl.mean, few.kl.mean);
  EXPECT_NEAR(tail.mass.value(), few.mass.value(), 1e-6) << "the rows are the same";
  EXPECT_EQ(tail.bytes_read - few.bytes_read, context_->index_memory("codes:k=16,v=8"));
}

TEST_F(FidelityOfTheBundledModel, TheMeanIsATailAndKeysCodesAreCountedOnce) {
  const Fidelity few = of({.k = TopK::same(4), .window = 32});
  const Fidelity mean = of({.k = TopK::same(4), .tail = "mean", .window = 32});
  EXPECT_LT(mean.error_mean, few.error_mean);
  EXPECT_EQ(mean.options.tail, "mean");
  const std::int64_t bytes = context_->index_memory("mean");
  EXPECT_EQ(mean.bytes_read - few.bytes_read, bytes);
  EXPECT_EQ(mean.bytes_held_host - few.bytes_held_host, bytes);
  // Beside codes, whose keys' codes are the same. (With one selection for a group both find the
  // same rows.)
  const auto with_tail = [&](const char* tail) {
    return of({.index = "codes:k=16,v=8",
               .k = TopK::same(4),
               .select_by = SelectBy::group,
               .tail = tail,
               .window = 32});
  };
  const Fidelity codes = with_tail("none");
  const Fidelity both = with_tail("mean");
  const AttentionShape& shape = context_->shape();
  const std::int64_t shared_errors =
      shape.layers * shape.kv_heads * shape.head_dim * shape.head_dim * 4;
  EXPECT_LT(both.bytes_held_host - codes.bytes_held_host, shared_errors + bytes / 10);
  EXPECT_LT(both.bytes_read - codes.bytes_read, shared_errors + bytes / 10);
  EXPECT_GT(both.bytes_read, codes.bytes_read);
}

TEST_F(FidelityOfTheBundledModel, ARuleTellsWhatItTookAndKeepsItsError) {
  RetrievalOptions options{.k = TopK::same(4), .tail = "codes:k=16,v=8", .window = 32};
  const Fidelity without = of(options);
  EXPECT_EQ(without.retrieved_more, 0);
  options.error = 0.02;
  const Fidelity with = of(options);
  EXPECT_LT(with.error_mean, without.error_mean);
  EXPECT_GT(with.rows, without.rows);
  EXPECT_GT(with.retrieved_more, 0);
  EXPECT_LE(with.went_dense, with.retrieved_more);
  EXPECT_FALSE(with.mass.has_value()) << "of which rows is not known";
  EXPECT_EQ(with.bytes_read, 0);
  options.error = 1e-9;
  const Fidelity all = of(options);
  EXPECT_LT(all.error_p90, 1e-4);
  EXPECT_EQ(all.went_dense, 1);
}

TEST_F(FidelityOfTheBundledModel, LayersThatAreDenseHaveNoError) {
  const Fidelity half = of({.k = TopK::same(4), .dense_layers = 4, .window = 32});
  for (std::size_t layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(half.layer_error[layer] > 0, layer >= 4) << layer;
  }
}

/// Rows of one layer and head whose scores for a query of ones are known.
std::shared_ptr<const Context> context_of(const std::vector<float>& scores) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 4, .scale = 1};
  const auto count = static_cast<std::int64_t>(scores.size());
  std::vector<float> keys;
  for (const float score : scores) keys.insert(keys.end(), 4, score / 4);
  ContextBuilder builder(shape, {.capacity = count, .dtype = DType::f32});
  const TensorView view = TensorView::tokens_first(keys.data(), DType::f32, count, 1, 4);
  builder.append(0, view, view);
  return builder.freeze();
}

TEST(AttentionSpread, CountsTheKeysOfThreeQuartersOfTheWeightAndTheirEntropy) {
  const std::vector<float> ones(8, 1.0F);
  LayerSpread even;
  add_spread(*context_of(std::vector<float>(1000, 0.5F)), 0, ones.data(), even);
  EXPECT_EQ(even.heads, 2);
  EXPECT_EQ(even.mean_keys(), 750);
  EXPECT_NEAR(even.mean_entropy(), std::log(1000.0), 1e-4);
  LayerSpread one;
  std::vector<float> scores(1000, 0.0F);
  scores[321] = 60;
  add_spread(*context_of(scores), 0, ones.data(), one);
  EXPECT_EQ(one.mean_keys(), 1);
  EXPECT_NEAR(one.mean_entropy(), 0, 1e-6);
  // Weights of 4/8, 2/8, 1/8, 1/8.
  LayerSpread some;
  add_spread(*context_of({0.0F, std::log(4.0F), 0.0F, std::log(2.0F)}), 0, ones.data(), some);
  EXPECT_EQ(some.mean_keys(), 2);
  EXPECT_NEAR(some.mean_entropy(), 1.75 * std::log(2.0), 1e-5);
}

}  // namespace
}  // namespace topkv
