// What tells the families apart in config.json, and how their makers would have text generated.
#include <gtest/gtest.h>

#include <cmath>
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
using Windows = std::vector<std::int64_t>;
using Ropes = std::vector<LayerRope>;

class ConfigFamilies : public testing::Test {
 protected:
  ModelConfig load(const Json& config) {
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path());
  }
  ModelConfig generation(const Json& json) {
    temp.write("generation_config.json", json.dump());
    return load(small("llama"));
  }
  static Json small(const std::string& type, const Json& changes = Json::object()) {
    Json config = {{"model_type", type},       {"vocab_size", 100},
                   {"hidden_size", 64},        {"intermediate_size", 128},
                   {"num_hidden_layers", 4},   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2}, {"max_position_embeddings", 4096},
                   {"eos_token_id", 2},        {"bos_token_id", 1}};
    config.update(changes);
    return config;
  }
  std::string file() const { return (temp.path() / "config.json").string(); }
  TempDirectory temp;
};

TEST_F(ConfigFamilies, MissingKeysMeanWhatTheyMeanInTransformers) {
  struct Case {
    const char* type;
    std::int64_t vocab, hidden, intermediate, layers, q_heads, kv_heads, head_dim, rotary_dim;
    std::int64_t max_position;
    double epsilon, theta;
    Token bos;
    std::vector<Token> eos;
    bool tied, qkv_bias, norm_inputs, norm_outputs, qk_norm;
  };
  const std::vector<Token> glm_end = {151329, 151336, 151338};
  const std::vector<Case> cases = {
      {"phi3", 32064, 3072, 8192, 32, 32, 32, 96, 96, 4096, 1e-5, 1e4, 1, {32000},
       false, false, true, false, false},
      {"glm", 151552, 4096, 13696, 40, 32, 2, 128, 64, 131072, 1.5625e-7, 1e4, -1, glm_end,
       false, true, true, false, false},
      {"glm4", 151552, 4096, 13696, 40, 32, 2, 128, 64, 131072, 1.5625e-7, 1e4, -1, glm_end,
       false, true, true, true, false},
      {"olmo2", 50304, 4096, 11008, 32, 32, 32, 128, 128, 2048, 1e-5, 1e4, -1, {50279},
       false, false, false, true, true},
      {"smollm3", 128256, 2048, 11008, 36, 16, 4, 128, 128, 32768, 1e-6, 2e6, 128000, {128001},
       true, false, true, false, false},
      {"gemma2", 256000, 2304, 9216, 26, 8, 4, 256, 256, 8192, 1e-6, 1e4, 2, {1},
       true, false, true, true, false},
      {"gemma3_text", 262208, 2304, 9216, 26, 8, 4, 256, 256, 131072, 1e-6, 1e6, 2, {1},
       true, false, true, true, true},
      {"granite", 32000, 4096, 11008, 32, 32, 32, 128, 128, 2048, 1e-6, 1e4, 1, {2},
       false, false, true, false, false},
      {"gemma4_text", 262144, 2304, 9216, 30, 8, 4, 512, 512, 131072, 1e-6, 1e6, 2, {1},
       true, false, true, true, true},
      {"gemma4_unified_text", 262144, 2304, 9216, 30, 8, 4, 512, 512, 262144, 1e-6, 1e6, 2, {1},
       true, false, true, true, true},
      {"lfm2", 65536, 2560, 8192, 32, 32, 8, 80, 80, 128000, 1e-5, 1e6, 1, {2},
       true, false, true, false, true},
      {"ministral3", 131072, 4096, 14336, 34, 32, 8, 128, 128, 262144, 1e-5, 1e6, 1, {2},
       false, false, true, false, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.type);
    const ModelConfig config = load({{"model_type", c.type}});
    EXPECT_EQ(config.vocab_size, c.vocab);
    EXPECT_EQ(config.hidden_size, c.hidden);
    EXPECT_EQ(config.intermediate_size, c.intermediate);
    EXPECT_EQ(config.attention.layers, c.layers);
    EXPECT_EQ(config.attention.q_heads, c.q_heads);
    EXPECT_EQ(config.attention.kv_heads, c.kv_heads);
    EXPECT_EQ(config.attention.head_dim, c.head_dim);
    EXPECT_EQ(config.rotary_dim, c.rotary_dim);
    EXPECT_EQ(config.max_position, c.max_position);
    EXPECT_EQ(config.rms_norm_eps, c.epsilon);
    EXPECT_EQ(config.rope_theta, c.theta);
    EXPECT_EQ(config.bos, c.bos);
    EXPECT_EQ(config.eos, c.eos);
    EXPECT_EQ(config.tied_embeddings, c.tied);
    EXPECT_EQ(config.qkv_bias, c.qkv_bias);
    EXPECT_FALSE(config.o_bias);
    EXPECT_EQ(config.norm_inputs, c.norm_inputs);
    EXPECT_EQ(config.norm_outputs, c.norm_outputs);
    EXPECT_EQ(config.qk_norm, c.qk_norm);
    EXPECT_TRUE(config.warnings.empty());
  }
}

TEST_F(ConfigFamilies, PhiReadsItsOriginalLengthAtTheTopLevel) {
  Json scaling = {{"type", "su"},
                  {"short_factor", Json::array_t(4, 1.0)},
                  {"long_factor", Json::array_t(4, 2.0)},
                  {"original_max_position_embeddings", 99}};
  const Json phi = small("phi3", {{"rope_scaling", scaling},
                                  {"max_position_embeddings", 8192},
                                  {"original_max_position_embeddings", 1024}});
  const ModelConfig config = load(phi);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(config.rope_scaling.original_max_position, 1024);
  EXPECT_EQ(config.reach(), 8192);
  EXPECT_TRUE(config.warnings.empty());
  Json without = phi;
  without.erase("original_max_position_embeddings");
  EXPECT_EQ(load(without).rope_scaling.original_max_position, 4096);
  scaling["type"] = "linear";
  expect_error<Unsupported>([&] { load(small("phi3", {{"rope_scaling", scaling}})); },
                            file() + ": ", {"rope_scaling.type is \"linear\"", "longrope"});
}

TEST_F(ConfigFamilies, PartOfTheHeadIsTurnedWhereTheFamilyReadsIt) {
  EXPECT_EQ(load(small("phi3", {{"head_dim", 16}, {"partial_rotary_factor", 0.75}})).rotary_dim,
            12);
  EXPECT_EQ(load(small("glm", {{"head_dim", 16}})).rotary_dim, 8);
  EXPECT_TRUE(load(small("glm", {{"head_dim", 16}})).rope_interleaved);
  EXPECT_EQ(load(small("glm4", {{"head_dim", 16},
                                {"partial_rotary_factor", 0.25},
                                {"rope_parameters", {{"partial_rotary_factor", 1.0}}}}))
                .rotary_dim,
            16);
  for (const double part : {0.0, 0.1, 0.2}) {  // of 16: nothing, one, three
    expect_error<FileError>(
        [&] { load(small("glm", {{"head_dim", 16}, {"partial_rotary_factor", part}})); },
        file() + ": ", {"partial_rotary_factor is 0", "even number"});
  }
  expect_error<FileError>([&] { load(small("glm", {{"head_dim", 6}})); }, file() + ": ",
                          {"partial_rotary_factor is missing"});
}

TEST_F(ConfigFamilies, LayersWithoutRopeAreListedOrEachNth) {
  const LayerRope yes = LayerRope::model, no = LayerRope::none;
  EXPECT_EQ(load(small("smollm3")).layer_rope, (Ropes{yes, yes, yes, no}));
  EXPECT_EQ(load(small("smollm3", {{"no_rope_layer_interval", 2}})).layer_rope,
            (Ropes{yes, no, yes, no}));
  EXPECT_EQ(load(small("smollm3", {{"no_rope_layers", {0, 1, 1, 1}}})).layer_rope,
            (Ropes{no, yes, yes, yes}));
  EXPECT_EQ(load(small("smollm3", {{"no_rope_layers", {1, 1, 1, 1}}})).layer_rope, Ropes{});
  const ModelConfig windowed =
      load(small("smollm3", {{"use_sliding_window", true}, {"sliding_window", 16}}));
  EXPECT_EQ(windowed.attention.sliding_window, (Windows{0, 0, 0, 16}));
  for (const Json& bad : {Json{1, 1}, Json{1, 1, 1, 2}, Json{1, 1, 1, "0"}, Json(3)}) {
    expect_error<FileError>([&] { load(small("smollm3", {{"no_rope_layers", bad}})); },
                            file() + ": ", {"no_rope_layers is ", "num_hidden_layers (4)"});
  }
  expect_error<FileError>([&] { load(small("smollm3", {{"no_rope_layer_interval", 0}})); },
                          file() + ": ", {"no_rope_layer_interval is 0"});
}

TEST_F(ConfigFamilies, GemmaTwoScalesAndCaps) {
  const ModelConfig config = load(small("gemma2", {{"query_pre_attn_scalar", 64}}));
  EXPECT_EQ(config.activation, ModelConfig::Activation::gelu_tanh);
  EXPECT_EQ(config.embedding_scale, 8);
  EXPECT_EQ(config.attention.scale, 0.125F);
  EXPECT_EQ(config.attention.softcap, 50);
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_EQ(config.attention.sliding_window, (Windows{4096, 0, 4096, 0}));
  const ModelConfig uncapped = load(small("gemma2", {{"attn_logit_softcapping", nullptr},
                                                     {"final_logit_softcapping", nullptr}}));
  EXPECT_EQ(uncapped.attention.softcap, 0);
  EXPECT_EQ(uncapped.final_softcap, 0);
  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c : {Case{{{"query_pre_attn_scalar", 0}}, {"query_pre_attn_scalar is 0"}},
                        Case{{{"query_pre_attn_scalar", -1}}, {"query_pre_attn_scalar is -1"}},
                        Case{{{"attn_logit_softcapping", -50}}, {"attn_logit_softcapping is -50"}},
                        Case{{{"final_logit_softcapping", "30"}}, {"final_logit_softcapping is"}},
                        Case{{{"sliding_window", nullptr}}, {"sliding_window is null"}}}) {
    expect_error<FileError>([&] { load(small("gemma2", c.changes)); }, file() + ": ", c.says);
  }
  expect_error<Unsupported>([&] { load(small("gemma2", {{"hidden_activation", "gelu"}})); },
                            file() + ": ", {"hidden_activation is \"gelu\"", "gelu_pytorch_tanh"});
}

TEST_F(ConfigFamilies, GemmaThreeHasAThetaForEachKindOfLayer) {
  const LayerRope model = LayerRope::model, sliding = LayerRope::sliding;
  const Json pattern = {{"sliding_window", 512}, {"sliding_window_pattern", 2}};
  ModelConfig config = load(small("gemma3_text", pattern));
  EXPECT_EQ(config.attention.sliding_window, (Windows{512, 0, 512, 0}));
  EXPECT_EQ(config.layer_rope, (Ropes{sliding, model, sliding, model}));
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.sliding_rope_theta, 1e4);
  EXPECT_EQ(config.final_softcap, 0);

  Json old = pattern;
  old.update({{"rope_theta", 5e5},
              {"rope_local_base_freq", 2e4},
              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  config = load(small("gemma3_text", old));
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.sliding_rope_theta, 2e4);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.reach(), 4096);
  EXPECT_TRUE(config.warnings.empty());

  Json kinds = pattern;
  kinds["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"rope_theta", 3e5}, {"factor", 4}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  config = load(small("gemma3_text", kinds));
  EXPECT_EQ(config.rope_theta, 3e5);
  EXPECT_EQ(config.sliding_rope_theta, 3e4);
  EXPECT_EQ(config.rope_scaling.factor, 4);
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_EQ(load(small("gemma3_text", {{"layer_types", Json::array_t(4, "full_attention")}}))
                .layer_rope,
            Ropes{});

  const auto refused = [&](const char* kind, const Json& rope, std::string_view says) {
    Json changes = pattern;
    changes["rope_parameters"] = {{kind, rope}};
    expect_error<Unsupported>([&] { load(small("gemma3_text", changes)); }, file() + ": ", {says});
  };
  refused("sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}, "a window");
  refused("full_attention", {{"rope_type", "dynamic"}, {"factor", 2}}, "rope_type is \"dynamic\"");
  refused("full_attention", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5");
  refused("rope_theta", 1e4, "with an object each");
  expect_error<Unsupported>([&] { load(small("gemma3_text", {{"attn_logit_softcapping", 50}})); },
                            file() + ": ", {"attn_logit_softcapping is 50"});
  expect_error<Unsupported>(
      [&] { load(small("gemma3_text", {{"use_bidirectional_attention", true}})); }, file() + ": ",
      {"use_bidirectional_attention is true"});
}

TEST_F(ConfigFamilies, LayersOfGemma4WithoutAWindowHaveHeadsOfTheirOwn) {
  ModelConfig config = load({{"model_type", "gemma4_text"}});
  const AttentionShape& shape = config.attention;
  EXPECT_EQ(shape.sliding_head_dim, 256);
  EXPECT_EQ(shape.sliding_kv_heads, 4);
  EXPECT_EQ(shape.window_of(0), 512);
  EXPECT_EQ(shape.window_of(29), 0);
  EXPECT_EQ(shape.scale, 1);
  EXPECT_TRUE(config.value_norm && config.layer_scale);
  EXPECT_FALSE(config.values_from_keys);
  EXPECT_EQ(config.layer_inputs.size, 256);
  EXPECT_EQ(config.sliding_rotary(), 256);
  EXPECT_EQ(config.sliding_rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling.pair_factors.size(), 256U);
  EXPECT_EQ(config.rope_scaling.pair_factors[63], 1);
  EXPECT_TRUE(std::isinf(config.rope_scaling.pair_factors[64]));
  EXPECT_EQ(config.reach(), 131072);
  EXPECT_EQ(config.mixture.experts, 0);

  const Json heads = {
      {"head_dim", 8},
      {"num_key_value_heads", 2},
      {"global_head_dim", 16},
      {"num_global_key_value_heads", 1},
      {"layer_types",
       {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"}},
      {"hidden_size_per_layer_input", 0}};
  const auto with = [&](const Json& changes) {
    Json all = heads;
    all.update(changes);
    return load(small("gemma4_text", all));
  };
  config = with(Json::object());
  EXPECT_EQ(config.attention.head_dim, 16);
  EXPECT_EQ(config.attention.kv_heads, 2);      // without attention_k_eq_v
  EXPECT_EQ(config.attention.window_of(3), 0);  // the last layer, as in transformers
  EXPECT_EQ(with({{"attention_k_eq_v", true}}).attention.kv_heads, 1);
  EXPECT_EQ(with({{"attention_k_eq_v", true}, {"num_global_key_value_heads", nullptr}})
                .attention.kv_heads,
            2);
  const Json own = {{"head_dim", 12}, {"num_key_value_heads", 1}};
  config = with({{"per_layer_config", {{"01", own}, {"3", own}}}});
  EXPECT_EQ(config.attention.head_dim, 12);
  EXPECT_EQ(config.attention.kv_heads, 1);
  EXPECT_EQ(config.attention.sliding_head_dim, 8);

  config = with({{"num_kv_shared_layers", 2}, {"use_double_wide_mlp", true}});
  EXPECT_EQ(config.attention.row_layer, (Windows{0, 1, 0, 1}));
  EXPECT_EQ(config.intermediate_size_of(1), config.intermediate_size);
  EXPECT_EQ(config.intermediate_size_of(2), 2 * config.intermediate_size);
  EXPECT_EQ(with({{"use_bidirectional_attention", "vision"}}).warnings.size(), 0U);

  const auto refused = [&](const Json& changes, std::string_view says) {
    expect_error<FileError>([&] { with(changes); }, file() + ": ", {says});
  };
  const auto unsupported = [&](const Json& changes, std::string_view says) {
    expect_error<Unsupported>([&] { with(changes); }, file() + ": ", {says});
  };
  refused({{"global_head_dim", 15}}, "global_head_dim is 15");
  refused({{"attention_k_eq_v", true}, {"num_global_key_value_heads", 3}},
          "num_global_key_value_heads is 3");
  unsupported({{"per_layer_config", {{"0", own}}}}, "per_layer_config");
  unsupported({{"per_layer_config", {{"1", own}}}}, "per_layer_config");
  refused({{"per_layer_config", {{"4", own}}}}, "layers 0 to 3");
  refused({{"per_layer_config", {{"x", own}}}}, "layers 0 to 3");
  unsupported({{"per_layer_config", {{"1", {{"sliding_window", 8}}}}}}, "per_layer_config");
  refused({{"num_kv_shared_layers", 4}}, "num_kv_shared_layers is 4");
  refused({{"num_kv_shared_layers", 3}}, "num_kv_shared_layers is 3");
  refused({{"hidden_size_per_layer_input", 4}, {"vocab_size_per_layer_input", 2}},
          "vocab_size_per_layer_input is 2");
  unsupported({{"use_bidirectional_attention", "all"}}, "use_bidirectional_attention is \"all\"");
  refused({{"enable_moe_block", true}}, "num_experts is missing");
  refused({{"enable_moe_block", true}, {"num_experts", 4}, {"moe_intermediate_size", 4}},
          "top_k_experts is missing");
  const auto rope = [&](const Json& full) {
    return Json({{"rope_parameters", {{"full_attention", full}}}});
  };
  unsupported(rope({{"rope_type", "yarn"}, {"factor", 2}}), "rope_type is \"yarn\"");
  unsupported(rope({{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}),
              "partial_rotary_factor is 0.25");
  refused(rope({{"rope_type", "proportional"}, {"partial_rotary_factor", 1.25}}),
          "partial_rotary_factor is 1.25");
  config = with(rope({{"rope_type", "proportional"}, {"rope_theta", 5e5}, {"factor", 4}}));
  EXPECT_EQ(config.rope_scaling.pair_factors, std::vector<double>(8, 4));
  EXPECT_EQ(config.rope_theta, 5e5);
}

TEST_F(ConfigFamilies, QueriesOfMinistralGrowWithTheirPosition) {
  ModelConfig config = load(small("ministral3"));  // without rope_parameters
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(config.rope_scaling.factor, 16);
  EXPECT_EQ(config.rope_scaling.original_max_position, 16384);
  EXPECT_EQ(config.rope_scaling.attention_factor, 1);
  EXPECT_EQ(config.query_growth.beta, 0.1);
  EXPECT_EQ(config.query_growth.at(16383), 1);
  EXPECT_DOUBLE_EQ(config.query_growth.at(16384), 1 + 0.1 * std::log(2.0));
  EXPECT_DOUBLE_EQ(config.query_growth.at(4 * 16384 - 1), 1 + 0.1 * std::log(4.0));

  Json rope = {{"rope_type", "yarn"},
               {"type", "yarn"},
               {"rope_theta", 5e5},
               {"factor", 8.0},
               {"original_max_position_embeddings", 512},
               {"max_position_embeddings", 4096},
               {"llama_4_scaling_beta", 0.25}};
  const auto with = [&](const Json& parameters) {
    return load(small("ministral3", {{"rope_parameters", parameters}}));
  };
  config = with(rope);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_DOUBLE_EQ(config.query_growth.at(1024), 1 + 0.25 * std::log(3.0));
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_EQ(load(small("mistral", {{"rope_parameters", rope}})).query_growth.beta, 0);
  EXPECT_EQ(load(small("mistral", {{"rope_parameters", rope}})).warnings.size(), 1U);

  const Json plain = {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.0}};
  EXPECT_EQ(with(plain).query_growth.at(1 << 20), 1);
  const auto refused = [&](const Json& parameters, std::string_view says) {
    expect_error<FileError>([&] { with(parameters); }, file() + ": rope_parameters.", {says});
  };
  rope["llama_4_scaling_beta"] = -0.1;
  refused(rope, "llama_4_scaling_beta is -0.1");
  rope["llama_4_scaling_beta"] = "0.1";
  refused(rope, "llama_4_scaling_beta is \"0.1\"");
  rope.erase("llama_4_scaling_beta");
  refused(rope, "llama_4_scaling_beta is missing");
  refused({{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}},
          "original_max_position_embeddings is missing");
  expect_error<Unsupported>(
      [&] {
        load(small("ministral3", {{"rope_parameters",
                                   {{"rope_type", "default"},
                                    {"original_max_position_embeddings", 512},
                                    {"llama_4_scaling_beta", 0.1}}},
                                  {"dual_chunk_attention_config", {{"chunk_size", 64}}}}));
      },
      file() + ": ", {"dual_chunk_attention_config", "queries that grow with their position"});
}

TEST_F(ConfigFamilies, ShortConvolutionsAreListedByTypeOrLeftByAttention) {
  const auto sizes = [&](const Json& changes) {
    return load(small("lfm2", changes)).attention.state_size;
  };
  EXPECT_TRUE(sizes(Json::object()).empty());  // as in transformers
  EXPECT_EQ(sizes({{"full_attn_idxs", {1, 3}}}), (Windows{128, 0, 128, 0}));
  EXPECT_EQ(sizes({{"layer_types", {"conv", "conv", "full_attention", "conv"}},
                   {"full_attn_idxs", {0}},
                   {"conv_L_cache", 5}}),
            (Windows{256, 256, 0, 256}));
  const ModelConfig config = load(small("lfm2", {{"full_attn_idxs", {1}}, {"norm_eps", 1e-4}}));
  EXPECT_EQ(config.convolution.width, 64);
  EXPECT_EQ(config.convolution.kernel, 3);
  EXPECT_EQ(config.state_size(), 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-4);
  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c : {Case{{{"full_attn_idxs", {4}}}, {"full_attn_idxs is [4]", "from 0 to 3"}},
                        Case{{{"full_attn_idxs", Json::array()}}, {"layer_types is missing", "one layer"}},
                        Case{{{"layer_types", {"conv"}}}, {"layer_types is", "(4)"}},
                        Case{{{"conv_L_cache", 1}}, {"conv_L_cache is 1"}},
                        Case{{{"norm_eps", -1}}, {"norm_eps is -1"}}}) {
    expect_error<FileError>([&] { load(small("lfm2", c.changes)); }, file() + ": ", c.says);
  }
  expect_error<Unsupported>([&] { load(small("lfm2", {{"conv_bias", true}})); }, file() + ": ",
                            {"conv_bias is true", "false"});
  expect_error<Unsupported>(
      [&] {
        load(small("lfm2", {{"layer_types", Json::array_t(4, "linear_attention")}}));
      },
      file() + ": ", {"layer_types is [\"linear_attention\"", "\"conv\""});
}

TEST_F(ConfigFamilies, TheMlpOfLfm2IsAsLargeAsItsKeysMakeIt) {
  const auto size = [&](const Json& changes) {
    return load(small("lfm2", changes)).intermediate_size;
  };
  EXPECT_EQ(size({{"intermediate_size", 12288}}), 8192);
  EXPECT_EQ(size({{"intermediate_size", 100}, {"block_ff_dim", 12288}}), 8192);
  EXPECT_EQ(size({{"block_ff_dim", 1000}, {"block_ffn_dim_multiplier", 1.5}}), 1024);
  EXPECT_EQ(size({{"block_ff_dim", 1000}, {"block_multiple_of", 7}}), 672);
  EXPECT_EQ(size({{"block_ff_dim", 1000}, {"block_ffn_dim_multiplier", nullptr}}), 666);
  EXPECT_EQ(size({{"block_ff_dim", 1000}, {"block_auto_adjust_ff_dim", false}}), 1000);
  EXPECT_FALSE(load(small("lfm2", {{"tie_embedding", false}, {"tie_word_embeddings", true}}))
                   .tied_embeddings);
  expect_error<FileError>([&] { load(small("lfm2", {{"block_ffn_dim_multiplier", 0}})); },
                          file() + ": ", {"block_ffn_dim_multiplier is 0", "makes an MLP"});
  expect_error<FileError>([&] { load(small("lfm2", {{"block_multiple_of", 0}})); }, file() + ": ",
                          {"block_multiple_of is 0"});
}

TEST_F(ConfigFamilies, GraniteHasMambaLayersByTypeAndFactorsOnEverything) {
  const Json types = {"mamba", "attention", "linear_attention", "full_attention"};
  const Json least = {{"layer_types", types}, {"mamba_n_heads", 4}, {"num_local_experts", 0}};
  const auto with = [&](Json changes) {
    Json all = least;
    all.update(changes);
    return load(small("granitemoehybrid", all));
  };
  ModelConfig config = with(Json::object());
  EXPECT_EQ(config.mamba.heads, 4);
  EXPECT_EQ(config.mamba.head_dim, 32);  // mamba_expand is 2
  EXPECT_EQ(config.mamba.groups, 1);
  EXPECT_EQ(config.mamba.state_dim, 256);
  EXPECT_EQ(config.mamba.kernel, 4);
  EXPECT_TRUE(config.mamba_bias);
  const std::int64_t size = 3 * (128 + 512) + 128 * 256;
  EXPECT_EQ(config.state_size(), size);
  EXPECT_EQ(config.attention.state_size, (Windows{size, 0, size, 0}));
  EXPECT_EQ(config.layer_rope, Ropes(4, LayerRope::none));
  EXPECT_EQ(config.intermediate_size, 1024);
  EXPECT_EQ(config.mixture.experts, 0);
  EXPECT_EQ(config.attention.scale, 1);
  EXPECT_TRUE(config.warnings.empty());
  config = with({{"embedding_multiplier", 12},
                 {"attention_multiplier", 0.25},
                 {"residual_multiplier", 0.22},
                 {"logits_scaling", 8},
                 {"shared_intermediate_size", 96},
                 {"position_embedding_type", "rope"},
                 {"mamba_d_head", 32},
                 {"mamba_conv_bias", false},
                 {"time_step_limit", {0.0, {{"__float__", "Infinity"}}}}});
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.attention.scale, 0.25F);
  EXPECT_EQ(config.residual_scale, 0.22);
  EXPECT_EQ(config.logit_scale, 0.125);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_TRUE(config.layer_rope.empty());
  EXPECT_FALSE(config.mamba_bias);
  config = load(small("granitemoehybrid", {{"layer_types", types}, {"mamba_n_heads", 4}}));
  EXPECT_EQ(config.mixture.experts, 8);
  EXPECT_EQ(config.mixture.per_token, 2);
  EXPECT_EQ(config.mixture.intermediate_size, 128);
  EXPECT_EQ(config.mixture.shared_intermediate_size, 1024);
  EXPECT_FALSE(config.mixture.shared_gate);

  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c :
       {Case{{{"layer_types", nullptr}}, {"layer_types is null", "one layer of full attention"}},
        Case{{{"mamba_n_heads", 3}}, {"mamba_n_heads is 3", "divides mamba_expand"}},
        Case{{{"mamba_n_groups", 3}}, {"mamba_n_heads is 4", "mamba_n_groups (3)"}},
        Case{{{"mamba_d_state", 257}}, {"mamba_d_state is 257"}},
        Case{{{"mamba_d_head", "wide"}}, {"mamba_d_head is \"wide\""}},
        Case{{{"mamba_d_conv", 1}}, {"mamba_d_conv is 1"}},
        Case{{{"residual_multiplier", 0}}, {"residual_multiplier is 0"}},
        Case{{{"logits_scaling", nullptr}}, {"logits_scaling is null"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { with(c.changes); }, file() + ": ", c.says);
  }
  for (const Case& c :
       {Case{{{"mamba_proj_bias", true}}, {"mamba_proj_bias is true", "false"}},
        Case{{{"position_embedding_type", "alibi"}}, {"position_embedding_type is \"alibi\""}},
        Case{{{"time_step_limit", {0.001, 0.1}}}, {"time_step_limit is [0.001,0.1]", "no limit"}},
        Case{{{"layer_types", Json::array_t(4, "conv")}}, {"layer_types is", "linear_attention"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<Unsupported>([&] { with(c.changes); }, file() + ": ", c.says);
  }
}

TEST_F(ConfigFamilies, NemotronHasALayerOfTheFileForEachPart) {
  const auto with = [&](Json changes) {
    Json all = {{"hybrid_override_pattern", "M-M*-M"}, {"num_hidden_layers", 6}};
    all.update(changes);
    return load(small("nemotron_h", all));
  };
  const auto expect = [&](const ModelConfig& config) {
    ASSERT_EQ(config.attention.layers, 4);
    const std::int64_t size = config.state_size();
    EXPECT_EQ(config.attention.state_size, (Windows{size, size, 0, size}));
    std::vector<std::pair<std::int64_t, std::int64_t>> stored;
    for (const auto& layer : config.stored_layers) stored.emplace_back(layer.mixer, layer.mlp);
    EXPECT_EQ(stored, (std::vector<std::pair<std::int64_t, std::int64_t>>{
                          {0, 1}, {2, -1}, {3, 4}, {5, -1}}));
    EXPECT_TRUE(config.has_mlp(0) && config.has_mlp(2));
    EXPECT_FALSE(config.has_mlp(1) || config.has_mlp(3));
  };
  ModelConfig config = with(Json::object());
  expect(config);
  EXPECT_EQ(config.mamba.heads, 128);
  EXPECT_EQ(config.mamba.head_dim, 64);
  EXPECT_EQ(config.mamba.groups, 8);
  EXPECT_EQ(config.mamba.state_dim, 128);
  EXPECT_EQ(config.activation, ModelConfig::Activation::relu_squared);
  EXPECT_FALSE(config.has_mlp_gate());
  EXPECT_EQ(config.layer_rope, Ropes(4, LayerRope::none));
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.attention.head_dim, 128);
  EXPECT_TRUE(config.warnings.empty());
  const Json names = {"mamba", "mlp", "linear_attention", "attention", "mlp", "mamba"};
  expect(with({{"layers_block_type", names}, {"hybrid_override_pattern", nullptr}}));
  // As Python writes it.
  temp.write("config.json", R"({"model_type": "nemotron_h", "hybrid_override_pattern": "M*-",
      "layer_norm_epsilon": 1e-6, "time_step_limit": [0.0, Infinity]})");
  EXPECT_EQ(ModelConfig::load(temp.path()).rms_norm_eps, 1e-6);

  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c :
       {Case{{{"num_hidden_layers", 5}}, {"num_hidden_layers is 5", "hybrid_override_pattern (6)"}},
        Case{{{"hybrid_override_pattern", "M-MM-M"}}, {"hybrid_override_pattern", "one layer"}},
        Case{{{"hybrid_override_pattern", ""}}, {"hybrid_override_pattern is \"\"", "1 to 1000"}},
        Case{{{"hybrid_override_pattern", nullptr}}, {"hybrid_override_pattern is null"}},
        Case{{{"mamba_num_heads", 12}}, {"mamba_num_heads is 12", "n_groups (8)"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { with(c.changes); }, file() + ": ", c.says);
  }
  for (const Case& c :
       {Case{{{"hybrid_override_pattern", "MXM*-M"}}, {"hybrid_override_pattern is", "MLPs (mlp, -)"}},
        Case{{{"hybrid_override_pattern", "M--*-M"}}, {"one at a time"}},
        Case{{{"hybrid_override_pattern", "M-E*-M"}}, {"one at a time"}},
        Case{{{"hybrid_override_pattern", "-MM*-M"}}, {"one at a time"}},
        Case{{{"layers_block_type", {"conv"}}}, {"layers_block_type is [\"conv\"]"}},
        Case{{{"use_bias", true}}, {"use_bias is true"}},
        Case{{{"mlp_hidden_act", "silu"}}, {"mlp_hidden_act is \"silu\"", "relu2"}},
        Case{{{"mamba_hidden_act", "relu"}}, {"mamba_hidden_act is \"relu\"", "silu"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<Unsupported>([&] { with(c.changes); }, file() + ": ", c.says);
  }
}

TEST_F(ConfigFamilies, NemotronHasMixturesWhereThePatternSaysSo) {
  const auto with = [&](Json changes) {
    Json all = {{"hybrid_override_pattern", "MEM*EM-"},
                {"num_hidden_layers", 7},
                {"routed_scaling_factor", 2.5}};
    all.update(changes);
    return load(small("nemotron_h", all));
  };
  const ModelConfig config = with(Json::object());
  const ExpertMixture& mixture = config.mixture;
  ASSERT_EQ(config.attention.layers, 4);
  EXPECT_EQ(mixture.layers, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(mixture.experts, 8);
  EXPECT_EQ(mixture.per_token, 2);
  EXPECT_EQ(mixture.intermediate_size, 7688);
  EXPECT_EQ(mixture.shared_intermediate_size, 7688);
  EXPECT_FALSE(mixture.shared_gate || mixture.own_norms);
  EXPECT_TRUE(mixture.sigmoid && mixture.sums_to_one && mixture.choice_bias);
  EXPECT_EQ(mixture.scale, 2.5);
  EXPECT_EQ(mixture.least_sum, 1e-20);
  EXPECT_EQ(mixture.groups, 1);
  EXPECT_TRUE(config.has_dense_mlp(3));
  EXPECT_FALSE(config.has_dense_mlp(0) || config.has_dense_mlp(1));
  EXPECT_FALSE(config.has_mlp_gate());
  EXPECT_EQ(with({{"hybrid_override_pattern", "M-M*-M-"}}).mixture.experts, 0);
  const ModelConfig named = with({{"layers_block_type", {"mamba", "moe", "attention"}},
                                  {"hybrid_override_pattern", nullptr},
                                  {"num_hidden_layers", 3},
                                  {"norm_topk_prob", false},
                                  {"n_routed_experts", 16},
                                  {"num_experts_per_tok", 4},
                                  {"n_group", 4},
                                  {"topk_group", 2},
                                  {"moe_shared_expert_intermediate_size", 48}});
  EXPECT_EQ(named.mixture.layers, (std::vector<bool>{true, false}));
  EXPECT_EQ(named.mixture.groups, 4);
  EXPECT_EQ(named.mixture.chosen_groups, 2);
  EXPECT_EQ(named.mixture.shared_intermediate_size, 48);
  EXPECT_FALSE(named.mixture.sums_to_one);

  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c :
       {Case{{{"n_routed_experts", 0}}, {"n_routed_experts is 0"}},
        Case{{{"num_experts_per_tok", 9}}, {"num_experts_per_tok is 9", "n_routed_experts (8)"}},
        Case{{{"n_group", 3}}, {"n_group is 3", "a divisor of n_routed_experts (8)"}},
        Case{{{"moe_shared_expert_intermediate_size", 0}},
             {"moe_shared_expert_intermediate_size is 0"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { with(c.changes); }, file() + ": ", c.says);
  }
  for (const Case& c : {Case{{{"moe_latent_size", 1024}}, {"moe_latent_size is 1024", "null"}},
                        Case{{{"n_shared_experts", 2}}, {"n_shared_experts is 2", "1"}},
                        Case{{{"mlp_bias", true}}, {"mlp_bias is true", "false beside experts"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<Unsupported>([&] { with(c.changes); }, file() + ": ", c.says);
  }
}

TEST_F(ConfigFamilies, Lfm2HasMixturesBehindItsDenseLayers) {
  const auto with = [&](Json changes) {
    Json all = {{"layer_types", {"conv", "conv", "full_attention", "conv"}},
                {"num_hidden_layers", 4}};
    all.update(changes);
    return load(small("lfm2_moe", all));
  };
  const ModelConfig config = with(Json::object());
  const ExpertMixture& mixture = config.mixture;
  EXPECT_EQ(mixture.layers, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(mixture.experts, 32);
  EXPECT_EQ(mixture.per_token, 4);
  EXPECT_EQ(mixture.intermediate_size, 1792);
  EXPECT_EQ(mixture.shared_intermediate_size, 0);
  EXPECT_TRUE(mixture.sigmoid && mixture.sums_to_one && mixture.choice_bias);
  EXPECT_EQ(mixture.least_sum, 1e-6);
  EXPECT_EQ(mixture.scale, 1);
  EXPECT_GT(config.convolution.width, 0);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_TRUE(config.warnings.empty());
  const ModelConfig other = with({{"num_dense_layers", 0},
                                  {"use_expert_bias", false},
                                  {"norm_topk_prob", false},
                                  {"routed_scaling_factor", 2.0},
                                  {"tie_embedding", false}});
  EXPECT_TRUE(other.mixture.layers.empty());
  EXPECT_FALSE(other.mixture.choice_bias || other.mixture.sums_to_one || other.tied_embeddings);
  EXPECT_EQ(other.mixture.scale, 2);
  EXPECT_EQ(with({{"num_dense_layers", 4}}).mixture.experts, 0);

  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  for (const Case& c :
       {Case{{{"num_experts", 0}}, {"num_experts is 0"}},
        Case{{{"num_experts_per_tok", 33}}, {"num_experts_per_tok is 33", "num_experts (32)"}},
        Case{{{"num_dense_layers", -1}}, {"num_dense_layers is -1"}},
        Case{{{"use_expert_bias", 1}}, {"use_expert_bias is 1", "true or false"}},
        Case{{{"routed_scaling_factor", 0}}, {"routed_scaling_factor is 0"}}}) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { with(c.changes); }, file() + ": ", c.says);
  }
  expect_error<Unsupported>(
      [&] {
        with({{"conv_bias", true}});
      },
      file() + ": ", {"conv_bias is true", "false"});
}

TEST_F(ConfigFamilies, SamplingIsGreedyUnlessTheModelsMakersSampled) {
  const auto expect = [&](const Json& json, double temperature, std::int64_t top_k, double top_p) {
    SCOPED_TRACE(json.dump());
    const SamplingOptions sampling = generation(json).sampling;
    EXPECT_EQ(sampling.temperature, temperature);
    EXPECT_EQ(sampling.top_k, top_k);
    EXPECT_EQ(sampling.top_p, top_p);
  };
  EXPECT_EQ(load(small("llama")).sampling.temperature, 0);
  expect(Json::object(), 0, 0, 1);
  expect({{"do_sample", false}, {"temperature", 0.6}, {"top_p", 0.9}}, 0, 0, 1);
  expect({{"temperature", 0.6}, {"top_p", 0.9}}, 0, 0, 1);
  expect({{"do_sample", true}}, 1, 50, 1);
  expect({{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}}, 0.6, 20,
         0.95);
  expect({{"do_sample", true}, {"temperature", nullptr}, {"top_k", 0}, {"top_p", nullptr}}, 1, 0,
         1);
  expect({{"do_sample", true}, {"top_p", 0.0}}, 0, 0, 1);
}

TEST_F(ConfigFamilies, SamplingThatTopkvDoesNotHaveIsTold) {
  const ModelConfig config = generation({{"do_sample", true},
                                         {"typical_p", 0.9},
                                         {"min_p", 0.1},
                                         {"num_beams", 4},
                                         {"eta_cutoff", 0}});
  EXPECT_TRUE(config.sampling_warning.starts_with(
      (temp.path() / "generation_config.json").string() + ": typical_p is 0.9, num_beams is 4: "))
      << config.sampling_warning;
  EXPECT_EQ(config.sampling_warning.find("eta_cutoff"), std::string::npos);
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_EQ(generation({{"repetition_penalty", 1.0}, {"num_beams", 1}}).sampling_warning, "");
}

TEST_F(ConfigFamilies, MinPAndRepetitionPenaltyAreRead) {
  const ModelConfig both =
      generation({{"do_sample", true}, {"repetition_penalty", 1.05}, {"min_p", 0.1}});
  EXPECT_EQ(both.sampling.repetition_penalty, 1.05);
  EXPECT_EQ(both.sampling.min_p, 0.1);
  EXPECT_EQ(both.sampling_warning, "");
  const ModelConfig greedy = generation({{"repetition_penalty", 1.2}, {"min_p", 0.1}});
  EXPECT_EQ(greedy.sampling.temperature, 0);
  EXPECT_EQ(greedy.sampling.repetition_penalty, 1.2) << "greedy ones are penalised, too";
  EXPECT_EQ(greedy.sampling.min_p, 0);
}

TEST_F(ConfigFamilies, AbsurdSamplingIsRefused) {
  const std::string path = (temp.path() / "generation_config.json").string();
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"temperature", -1},
           {"temperature", 1e300},
           {"temperature", "hot"},
           {"top_k", -1},
           {"top_k", 1.5},
           {"top_p", 1.5},
           {"top_p", -0.1},
           {"min_p", 2},
           {"repetition_penalty", 0},
           {"repetition_penalty", -1},
           {"do_sample", 1}}) {
    SCOPED_TRACE(key);
    Json json = {{"do_sample", true}};
    json[key] = value;
    expect_error<FileError>([&, json = json] { generation(json); }, path + ": ",
                            {std::string(key) + " is "});
  }
}

}  // namespace
}  // namespace topkv
