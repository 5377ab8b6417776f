// What config.json says of mixtures of experts, and what is wrong with it.
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Layers = std::vector<bool>;

class ConfigExperts : public testing::Test {
 protected:
  ModelConfig load(const Json& config) const {
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path());
  }
  static Json small(const std::string& type, const Json& changes = Json::object()) {
    Json config = {{"model_type", type},       {"vocab_size", 100},
                   {"hidden_size", 64},        {"intermediate_size", 128},
                   {"num_hidden_layers", 4},   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2}, {"max_position_embeddings", 4096},
                   {"eos_token_id", 2},        {"bos_token_id", 1}};
    if (type == "gpt_oss") config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32}};
    config.update(changes);
    return config;
  }
  std::string file() const { return (temp.path() / "config.json").string(); }
  TempDirectory temp;
};

// As they lie in the repositories of their makers.
constexpr const char* mixtral_8x7b = R"({"architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* qwen3_30b_a3b = R"({"architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936, "dual_chunk_attention_config": {"chunk_size": 262144,
    "local_size": 8192, "original_max_position_embeddings": 262144}})";
constexpr const char* gpt_oss_20b = R"({"architectures": ["GptOssForCausalLM"],
    "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
    "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 4,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert":
    ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
    "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9,
    "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088})";

TEST_F(ConfigExperts, FilesOfRealCheckpointsAreReadWithoutAWord) {
  const ModelConfig mixtral = load(Json::parse(mixtral_8x7b));
  EXPECT_EQ(mixtral.warnings, std::vector<std::string>());
  EXPECT_EQ(mixtral.mixture.experts, 8);
  EXPECT_EQ(mixtral.mixture.per_token, 2);
  EXPECT_EQ(mixtral.mixture.intermediate_size, 14336);
  EXPECT_FALSE(mixtral.mixture.softmax_over_all || mixtral.mixture.biases);
  EXPECT_TRUE(mixtral.mixture.in(0) && mixtral.mixture.in(31));
  EXPECT_EQ(mixtral.attention.window_of(0), 0);

  const ModelConfig qwen = load(Json::parse(qwen3_30b_a3b));
  EXPECT_EQ(qwen.warnings, std::vector<std::string>());
  EXPECT_EQ(qwen.mixture.experts, 128);
  EXPECT_EQ(qwen.mixture.per_token, 8);
  EXPECT_EQ(qwen.mixture.intermediate_size, 768);
  EXPECT_EQ(qwen.mixture.layers, Layers());
  EXPECT_FALSE(qwen.mixture.softmax_over_all || qwen.attention_sinks);
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_EQ(qwen.dual_chunk.chunk_size, 262144);

  const ModelConfig oss = load(Json::parse(gpt_oss_20b));
  EXPECT_EQ(oss.warnings, std::vector<std::string>());
  EXPECT_EQ(oss.mixture.experts, 32);
  EXPECT_EQ(oss.mixture.per_token, 4);
  EXPECT_TRUE(oss.mixture.biases && oss.attention_sinks && oss.qkv_bias && oss.o_bias);
  EXPECT_EQ(oss.activation, ModelConfig::Activation::clamped_silu);
  EXPECT_EQ(oss.swiglu_limit, 7);
  EXPECT_FALSE(oss.rope_scaling.truncate);
  EXPECT_EQ(oss.reach(), 131072);
  EXPECT_EQ(oss.attention.window_of(0), 128);
  EXPECT_EQ(oss.attention.window_of(1), 0);
}

TEST_F(ConfigExperts, MissingKeysMeanWhatTheyMeanInTransformers) {
  const ModelConfig mixtral = load({{"model_type", "mixtral"}});
  EXPECT_EQ(mixtral.attention.kv_heads, 8);
  EXPECT_EQ(mixtral.attention.head_dim, 128);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5);
  EXPECT_EQ(mixtral.mixture.experts, 8);
  EXPECT_EQ(mixtral.mixture.per_token, 2);
  const ModelConfig qwen = load({{"model_type", "qwen3_moe"}});
  EXPECT_EQ(qwen.hidden_size, 2048);
  EXPECT_EQ(qwen.attention.layers, 24);
  EXPECT_EQ(qwen.attention.kv_heads, 4);
  EXPECT_EQ(qwen.attention.head_dim, 64);
  EXPECT_EQ(qwen.mixture.experts, 128);
  EXPECT_EQ(qwen.mixture.per_token, 8);
  EXPECT_EQ(qwen.mixture.intermediate_size, 768);
  EXPECT_TRUE(qwen.mixture.softmax_over_all);
  EXPECT_TRUE(qwen.attention.sliding_window.empty());
  const ModelConfig oss =
      load({{"model_type", "gpt_oss"}, {"rope_scaling", {{"rope_type", "default"}}}});
  EXPECT_EQ(oss.hidden_size, 2880);
  EXPECT_EQ(oss.attention.layers, 36);
  EXPECT_EQ(oss.attention.head_dim, 64);
  EXPECT_EQ(oss.rope_theta, 150000);
  EXPECT_EQ(oss.mixture.experts, 128);
  EXPECT_EQ(oss.mixture.per_token, 4);
  EXPECT_EQ(oss.attention.window_of(0), 128);
  EXPECT_EQ(oss.attention.window_of(35), 0);
}

TEST_F(ConfigExperts, LayersHaveThemByTheStepAndTheListOfDenseOnes) {
  const auto layers = [&](const Json& changes) {
    return load(small("qwen3_moe", changes)).mixture;
  };
  EXPECT_EQ(layers(Json::object()).layers, Layers());
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}).layers, (Layers{false, true, false, true}));
  EXPECT_EQ(layers({{"mlp_only_layers", {0, 3, 9}}}).layers, (Layers{false, true, true, false}));
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}}).layers,
            (Layers{false, false, false, true}));
  for (const Json& none : {Json{{"num_experts", 0}}, Json{{"decoder_sparse_step", 5}},
                           Json{{"mlp_only_layers", {0, 1, 2, 3}}}}) {
    const ExpertMixture mixture = layers(none);
    EXPECT_EQ(mixture.experts, 0) << none;
    EXPECT_FALSE(mixture.in(0)) << none;
  }
  EXPECT_EQ(layers({{"num_local_experts", 16}}).experts, 16);  // as transformers 5 writes it
  EXPECT_EQ(layers({{"num_experts", 16}, {"num_local_experts", 16}}).experts, 16);
}

TEST_F(ConfigExperts, WindowsAreInAllLayersWhereTheyAreSwitchedOn) {
  const Json window = {
      {"use_sliding_window", true}, {"sliding_window", 512}, {"max_window_layers", 2}};
  const ModelConfig config = load(small("qwen3_moe", window));
  EXPECT_EQ(config.attention.sliding_window, (std::vector<std::int64_t>{512, 512, 512, 512}));
  EXPECT_TRUE(load(small("qwen3_moe", {{"sliding_window", 512}})).attention.sliding_window.empty());
}

TEST_F(ConfigExperts, WhatIsWrongOrOfAnotherNetworkIsToldByKeyAndValue) {
  struct Case {
    const char* type;
    Json changes;
    std::vector<std::string_view> says;
  };
  const std::vector<Case> wrong = {
      {"mixtral",
       {{"num_experts_per_tok", 9}},
       {"num_experts_per_tok is 9", "num_local_experts (8)"}},
      {"mixtral", {{"num_experts_per_tok", 0}}, {"num_experts_per_tok is 0"}},
      {"mixtral", {{"num_local_experts", 0}}, {"num_local_experts is 0"}},
      {"mixtral", {{"num_local_experts", 1025}}, {"num_local_experts is 1025", "1024"}},
      {"mixtral", {{"num_local_experts", -8}}, {"num_local_experts is -8"}},
      {"mixtral", {{"num_local_experts", 1e300}}, {"num_local_experts is 1e+300"}},
      {"mixtral",
       {{"num_local_experts", 1024}, {"intermediate_size", 5000}},
       {"intermediate_size is 5000", "4096 at most"}},
      {"qwen3_moe",
       {{"num_experts", 1024}, {"moe_intermediate_size", 1 << 22}},
       {"moe_intermediate_size is 4194304", "num_experts is 1024"}},
      {"qwen3_moe", {{"moe_intermediate_size", 0}}, {"moe_intermediate_size is 0"}},
      {"qwen3_moe",
       {{"num_experts", 16}, {"num_local_experts", 8}},
       {"num_local_experts is 8", "value of num_experts (16)"}},
      {"qwen3_moe", {{"norm_topk_prob", 1}}, {"norm_topk_prob is 1", "true or false"}},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, {"decoder_sparse_step is 0"}},
      {"qwen3_moe", {{"mlp_only_layers", {-1}}}, {"mlp_only_layers is [-1]"}},
      {"qwen3_moe", {{"mlp_only_layers", 3}}, {"mlp_only_layers is 3"}},
      {"gpt_oss",
       {{"experts_per_token", 3}},
       {"experts_per_token is 3", "num_experts_per_tok (4)"}},
      {"gpt_oss", {{"rope_scaling", nullptr}}, {"rope_scaling is null", "yarn"}},
      {"gpt_oss", {{"sliding_window", nullptr}}, {"sliding_window is null"}},
  };
  for (const Case& c : wrong) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { load(small(c.type, c.changes)); }, file() + ": ", c.says);
  }
  const std::vector<Case> other = {
      {"mixtral", {{"n_shared_experts", 1}}, {"n_shared_experts is 1"}},
      {"qwen3_moe",
       {{"shared_expert_intermediate_size", 64}},
       {"shared_expert_intermediate_size is 64"}},
      {"qwen3_moe", {{"routed_scaling_factor", 2.5}}, {"routed_scaling_factor is 2.5"}},
      {"qwen3_moe", {{"hidden_act", "gelu"}}, {"hidden_act is \"gelu\""}},
      {"gpt_oss", {{"swiglu_limit", 5.0}}, {"swiglu_limit is 5.0", "7"}},
      {"mixtral", {{"num_experts", 8}}, {"num_experts is 8", "dense"}},
      {"gpt_oss", {{"layer_types", Json::array_t(4, "linear_attention")}}, {"layer_types"}},
      {"gpt_oss",
       {{"dual_chunk_attention_config", {{"chunk_size", 64}, {"local_size", 8}}}},
       {"dual_chunk_attention_config"}},
  };
  for (const Case& c : other) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<Unsupported>([&] { load(small(c.type, c.changes)); }, file() + ": ", c.says);
  }
  EXPECT_TRUE(load(small("qwen3_moe", {{"routed_scaling_factor", 1.0}})).warnings.empty());
}

}  // namespace
}  // namespace topkv
