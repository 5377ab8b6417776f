// Models with multi-head latent attention: their configurations, and contexts, files, forks and
// sessions over rows whose key is their value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

class LatentConfig : public testing::Test {
 protected:
  ModelConfig load(const Json& config) {
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path());
  }
  TempDirectory temp;
};

TEST_F(LatentConfig, OfGlm47FlashIsReadWithoutAWarning) {
  const ModelConfig config = load({{"architectures", {"Glm4MoeLiteForCausalLM"}},
                                   {"attention_bias", false},
                                   {"attention_dropout", 0.0},
                                   {"dtype", "bfloat16"},
                                   {"eos_token_id", {154820, 154827, 154829}},
                                   {"first_k_dense_replace", 1},
                                   {"hidden_act", "silu"},
                                   {"hidden_size", 2048},
                                   {"intermediate_size", 10240},
                                   {"kv_lora_rank", 512},
                                   {"max_position_embeddings", 202752},
                                   {"model_type", "glm4_moe_lite"},
                                   {"moe_intermediate_size", 1536},
                                   {"n_group", 1},
                                   {"n_routed_experts", 64},
                                   {"n_shared_experts", 1},
                                   {"norm_topk_prob", true},
                                   {"num_attention_heads", 20},
                                   {"num_experts_per_tok", 4},
                                   {"num_hidden_layers", 47},
                                   {"num_key_value_heads", 20},
                                   {"num_nextn_predict_layers", 1},
                                   {"pad_token_id", 154820},
                                   {"partial_rotary_factor", 1.0},
                                   {"q_lora_rank", 768},
                                   {"qk_nope_head_dim", 192},
                                   {"qk_rope_head_dim", 64},
                                   {"rms_norm_eps", 1e-05},
                                   {"rope_scaling", nullptr},
                                   {"rope_theta", 1000000},
                                   {"routed_scaling_factor", 1.8},
                                   {"tie_word_embeddings", false},
                                   {"topk_group", 1},
                                   {"topk_method", "noaux_tc"},
                                   {"v_head_dim", 256},
                                   {"vocab_size", 154880}});
  EXPECT_EQ(config.warnings, std::vector<std::string>());
  EXPECT_EQ(config.attention.kv_heads, 1);
  EXPECT_EQ(config.attention.group(), 20);
  EXPECT_EQ(config.attention.head_dim, 576);
  EXPECT_TRUE(config.attention.keys_are_values);
  EXPECT_EQ(config.attention.scale, 1.0F / 16);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_EQ(config.latent.q_rank, 768);
  EXPECT_EQ(config.latent.value_dim, 256);
  EXPECT_EQ(config.mixture.shared_intermediate_size, 1536);
  EXPECT_FALSE(config.mixture.shared_gate);
  EXPECT_TRUE(config.mixture.sigmoid);
  EXPECT_TRUE(config.mixture.sums_to_one);
  EXPECT_EQ(config.mixture.scale, 1.8);
  EXPECT_FALSE(config.mixture.in(0));
  EXPECT_TRUE(config.mixture.in(1));
  EXPECT_EQ(config.kv_bytes_per_token({}), 47 * 576 * 2);
  EXPECT_EQ(config.kv_bytes_per_token(DType::q8), 47 * 18 * 34);
}

TEST_F(LatentConfig, MissingKeysMeanWhatTheyMeanInTransformers) {
  struct Case {
    const char* type;
    std::int64_t vocab, hidden, intermediate, layers, heads, max_position, nope, value, q_rank;
    std::int64_t experts, width, shared, groups, chosen, first_dense;
    double scale, epsilon;
    Token bos, eos;
  };
  const std::vector<Case> cases = {
      {"deepseek_v2", 102400,   4096, 11008, 32, 32, 2048, 128, 128, 1536, 64,
       1407,          2 * 1407, 1,    1,     0,  1,  1e-6, 1,   2},
      {"deepseek_v3", 129280, 7168, 18432, 61, 128, 4096, 128,  128, 1536,
       256,           2048,   2048, 8,     4,  3,   2.5,  1e-6, 0,   1},
      {"glm4_moe_lite",
       154880,
       2048,
       10240,
       47,
       20,
       202752,
       192,
       256,
       768,
       64,
       1536,
       1536,
       1,
       1,
       1,
       1.8,
       1e-5,
       0,
       1}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.type);
    Json json = {{"model_type", c.type}};
    if (c.type == std::string("deepseek_v2")) json["num_experts_per_tok"] = 6;  // has no default
    const ModelConfig config = load(json);
    EXPECT_EQ(config.vocab_size, c.vocab);
    EXPECT_EQ(config.hidden_size, c.hidden);
    EXPECT_EQ(config.intermediate_size, c.intermediate);
    EXPECT_EQ(config.attention.layers, c.layers);
    EXPECT_EQ(config.attention.q_heads, c.heads);
    EXPECT_EQ(config.attention.head_dim, 576);
    EXPECT_EQ(config.max_position, c.max_position);
    EXPECT_EQ(config.latent.nope_dim, c.nope);
    EXPECT_EQ(config.latent.value_dim, c.value);
    EXPECT_EQ(config.latent.q_rank, c.q_rank);
    EXPECT_EQ(config.mixture.experts, c.experts);
    EXPECT_EQ(config.mixture.intermediate_size, c.width);
    EXPECT_EQ(config.mixture.shared_intermediate_size, c.shared);
    EXPECT_EQ(config.mixture.groups, c.groups);
    EXPECT_EQ(config.mixture.chosen_groups, c.chosen);
    EXPECT_EQ(config.mixture.scale, c.scale);
    EXPECT_EQ(config.mixture.in(c.first_dense), true);
    EXPECT_FALSE(c.first_dense > 0 && config.mixture.in(c.first_dense - 1));
    EXPECT_EQ(config.rms_norm_eps, c.epsilon);
    EXPECT_EQ(config.bos, c.bos);
    EXPECT_EQ(config.eos, std::vector<Token>{c.eos});
    EXPECT_TRUE(config.warnings.empty());
  }
}

TEST_F(LatentConfig, KindsOfLayersAndRotationsAreRead) {
  Json glm = {{"model_type", "glm4_moe_lite"},
              {"num_hidden_layers", 3},
              {"rope_interleave", false},
              {"mlp_layer_types", {"sparse", "dense", "sparse"}}};
  const ModelConfig config = load(glm);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_TRUE(config.mixture.in(0));
  EXPECT_FALSE(config.mixture.in(1));
  glm["mlp_layer_types"] = {"sparse", "dense"};
  EXPECT_THROW(load(glm), FileError);
  Json two = {{"model_type", "deepseek_v2"}, {"num_experts_per_tok", 6}};
  two["norm_topk_prob"] = true;
  EXPECT_THROW(load(two), Unsupported);
  two["norm_topk_prob"] = false;
  two["topk_method"] = "noaux_tc";
  EXPECT_THROW(load(two), Unsupported);
  two["topk_method"] = "group_limited_greedy";
  two["n_group"] = 8;
  two["topk_group"] = 3;
  EXPECT_EQ(load(two).mixture.chosen_groups, 3);
  two["mlp_bias"] = true;
  EXPECT_THROW(load(two), Unsupported);
}

/// Over the fixture of GLM-4.7-Flash, with retrieval of few rows.
class Latent : public testing::Test {
 protected:
  static const Model& model() {
    static const Model one = Model::load(std::filesystem::path(TOPKV_SOURCE_DIR) /
                                         "tests/fixtures/parity/glm4-moe-lite");
    return one;
  }
  static std::vector<Token> text(std::int64_t tokens, std::int64_t number = 0) {
    std::vector<Token> all;
    for (std::int64_t i = 0; i < tokens; ++i)
      all.push_back(static_cast<Token>(3 + (number * 17 + i * i * 3 + i / 7) % 94));
    return all;
  }
  static std::shared_ptr<const Context> read(std::int64_t tokens, KvDType dtype = DType::f32,
                                             std::int64_t chunk = 0) {
    return model().prefill(text(tokens), {.chunk = chunk, .kv_dtype = dtype});
  }
  static std::vector<float> next(Session& session) {
    const std::int64_t own = session.own_tokens();
    auto logits = model().logits(session, text(5, 9));
    session.truncate(own);
    return logits;
  }
  /// The largest difference, of the largest logit.
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    double off = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(double{b[i]}));
      off = std::max(off, std::abs(double{a[i]} - b[i]));
    }
    EXPECT_GT(largest, 0);
    return off / largest;
  }
};

TEST_F(Latent, PrefillsInPiecesGiveTheSame) {
  Session whole(read(1100, DType::f32, 1100), {.window = 2000});  // projections have pieces, too
  const auto expected = next(whole);
  for (const std::int64_t chunk : {7, 512, 513}) {
    Session other(read(1100, DType::f32, chunk), {.window = 2000});
    EXPECT_LE(difference(next(other), expected), 2e-5) << chunk;
  }
}

TEST_F(Latent, AllRowsRetrievedEqualDenseWithEveryIndex) {
  const auto context = read(150);
  Session dense(context, {.dense_layers = 3});
  const auto expected = next(dense);
  for (const char* index : {"exact", "codes:k=16,v=8", "hnsw", "ivf"}) {
    Session session(context->ready_for({.index = index}),
                    {.index = index, .k = TopK::same(1000), .tail = "none", .window = 8});
    EXPECT_LE(difference(next(session), expected), 2e-5) << index;
  }
}

TEST_F(Latent, TailsAreNearerThanFewRowsAlone) {
  const auto context = read(300);
  Session dense(context, {.dense_layers = 3});
  const auto expected = next(dense);
  const auto off = [&](const char* tail) {
    const RetrievalOptions options{
        .index = "codes:k=16,v=8", .k = TopK::same(8), .tail = tail, .window = 8};
    Session session(context->ready_for(options), options);
    return difference(next(session), expected);
  };
  EXPECT_LT(off("codes"), off("none"));
}

TEST_F(Latent, FilesForksAndTruncationsGiveTheSameToTheBit) {
  const RetrievalOptions options{.k = TopK::same(8), .window = 16};
  const auto context = read(120, {});
  Session session(context, options);
  model().logits(session, text(20, 1));
  Session fork = session.fork();
  const auto expected = next(session);
  model().logits(session, text(7, 2));
  session.truncate(20);
  EXPECT_EQ(next(session), expected);
  EXPECT_EQ(next(fork), expected);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*session.own_rows(), folder.path() / "turns.tkv");
  for (const bool mapped : {false, true}) {
    const ContextLoadOptions how{.mapped = mapped};
    Session resumed(load_context(folder.path() / "text.tkv", how).context, options);
    resumed.resume(*load_context(folder.path() / "turns.tkv", how).context);
    EXPECT_EQ(next(resumed), expected);
  }
}

TEST_F(Latent, RowsInBlocksAreNearAndOfOneDtype) {
  const auto logits = [&](KvDType dtype) {
    Session session(read(100, dtype), {.window = 200});
    return next(session);
  };
  const auto expected = logits(DType::f32);
  const double q8 = difference(logits(DType::q8), expected);
  const double q4 = difference(logits(DType::q4), expected);
  EXPECT_LT(q8, 0.1);
  EXPECT_LT(q8, q4);
  EXPECT_THROW(read(10, {DType::q8, DType::q4}), InvalidArgument);
}

TEST_F(Latent, PlansCountARowOnce) {
  const auto folder =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity/glm4-moe-lite";
  for (const MemoryPlan& plan : memory_plans(folder, {.tokens = 4096})) {
    EXPECT_EQ(plan.rows.keys, plan.rows.values);
    const auto rows =
        std::ranges::find_if(plan.host.items, [](const auto& item) { return item.what == "rows"; });
    ASSERT_NE(rows, plan.host.items.end());
    EXPECT_EQ(rows->bytes, 3 * 4096 * vector_bytes(plan.rows.keys, 40));
  }
  EXPECT_THROW(memory_plans(folder, {.tokens = 10, .rows = KvDType(DType::q8, DType::q4)}),
               InvalidArgument);
}

TEST_F(Latent, WeightsInEightBitsAreNear) {
  const auto folder =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity/glm4-moe-lite";
  // Tokens whose experts are chosen by a lead that rounding does not reach.
  std::ifstream file(folder / "tokens.json");
  const auto tokens = Json::parse(file).at("tokens").get<std::vector<Token>>();
  const Model rounded = Model::load(folder, {}, {}, {.weights = WeightFormat::int8});
  EXPECT_LT(difference(rounded.logits(tokens), model().logits(tokens)), 0.1);
}

/// GGUF files of architecture deepseek2.
class LatentGguf : public testing::Test {
 protected:
  static std::filesystem::path fixture(const std::string& name) {
    return std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name / "model.gguf";
  }
  /// A copy of a fixture whose names are changed: `from` to `to`, of equal length.
  std::filesystem::path changed(const std::string& name, const std::string& from,
                                const std::string& to) {
    std::ifstream file(fixture(name), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_EQ(from.size(), to.size());
    std::size_t at = bytes.find(from);
    EXPECT_NE(at, bytes.npos);
    for (; at != bytes.npos; at = bytes.find(from, at)) bytes.replace(at, from.size(), to);
    return temp.write("model.gguf", bytes);
  }
  template <class E>
  void expect_refused(const std::filesystem::path& path,
                      const std::vector<std::string_view>& parts) {
    expect_error<E>([&] { Model::load(path); }, path.string() + ": ", parts);
  }
  TempDirectory temp;
};

TEST_F(LatentGguf, SaysWhatAConfigurationSays) {
  const ModelConfig three = ModelConfig::load(fixture("gguf-deepseek2"));
  EXPECT_EQ(three.warnings, std::vector<std::string>());
  EXPECT_EQ(three.model_type, "deepseek_v3");
  EXPECT_EQ(three.attention.head_dim, 64 + 16);
  EXPECT_EQ(three.latent.q_rank, 32);
  EXPECT_EQ(three.latent.nope_dim, 32);
  EXPECT_EQ(three.mixture.groups, 4);
  EXPECT_EQ(three.mixture.chosen_groups, 2);
  EXPECT_EQ(three.mixture.scale, 2.5);
  EXPECT_TRUE(three.mixture.sums_to_one);
  EXPECT_FALSE(three.mixture.in(0));
  EXPECT_NEAR(three.rope_scaling.attention_factor, 1, 1e-6);
  const double mscale = 0.1 * 1.5 * std::log(4) + 1;
  EXPECT_NEAR(three.attention.scale, mscale * mscale / std::sqrt(48), 1e-6);
  const ModelConfig flash = ModelConfig::load(fixture("gguf-glm47"));
  EXPECT_EQ(flash.model_type, "deepseek_v3");  // by its tensors exp_probs_b
  EXPECT_EQ(flash.latent.value_dim, 64);
  EXPECT_EQ(flash.mixture.groups, 1);
  const ModelConfig lite = ModelConfig::load(fixture("gguf-deepseek2-lite"));
  EXPECT_EQ(lite.model_type, "deepseek_v2");
  EXPECT_EQ(lite.latent.q_rank, 0);
  EXPECT_EQ(lite.mixture.shared_intermediate_size, 64);
  EXPECT_TRUE(lite.mixture.softmax_over_all);
}

TEST_F(LatentGguf, OfOtherFormsAreRefused) {
  expect_refused<Unsupported>(changed("gguf-glm47", "key_length_mla", "key_length_old"),
                              {"has no deepseek2.attention.key_length_mla", "April 2025"});
  expect_refused<FileError>(changed("gguf-glm47", "kv_lora_rank", "kv_rank_lora"),
                            {"deepseek2.attention.kv_lora_rank is missing"});
  expect_refused<FileError>(changed("gguf-glm47", "blk.1.attn_k_b", "blk.1.attn_q_b"),
                            {"blk.1.attn_q_b"});
  expect_refused<Unsupported>(changed("gguf-glm47", "attn_kv_a_norm", "attn_kv_x_norm"),
                              {"has tensor blk.0.attn_kv_x_norm.weight"});
  expect_refused<Unsupported>(changed("gguf-deepseek2-lite", "ffn_up_shexp", "ffn_up_other"),
                              {"ffn_up_other"});
}

}  // namespace
}  // namespace topkv
