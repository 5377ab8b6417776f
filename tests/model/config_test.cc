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
using Windows = std::vector<std::int64_t>;

class ConfigTest : public testing::Test {
 protected:
  ModelConfig load(const Json& config) {
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path());
  }
  std::string file() const { return (temp.path() / "config.json").string(); }
  TempDirectory temp;
};

/// A small config of a family, with keys of `changes` added or replaced.
Json config_of(const std::string& type, const Json& changes = Json::object()) {
  Json config = {{"model_type", type},       {"vocab_size", 100},
                 {"hidden_size", 64},        {"intermediate_size", 128},
                 {"num_hidden_layers", 4},   {"num_attention_heads", 8},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 4096}};
  config.update(changes);
  return config;
}

TEST_F(ConfigTest, BundledModelIsReadInFull) {
  const ModelConfig config = ModelConfig::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.attention.layers, 8);
  EXPECT_EQ(config.attention.q_heads, 6);
  EXPECT_EQ(config.attention.kv_heads, 2);
  EXPECT_EQ(config.attention.head_dim, 64);
  EXPECT_EQ(config.attention.scale, 0.0F);
  EXPECT_TRUE(config.attention.sliding_window.empty());
  EXPECT_EQ(config.hidden_size, 384);
  EXPECT_EQ(config.intermediate_size, 1024);
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_EQ(config.max_position, 1049600);  // 1 Mi and a question
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 1e10);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.bos, 0);
  EXPECT_EQ(config.eos, std::vector<Token>{1});
  EXPECT_EQ(config.kv_bytes_per_token(DType::bf16), 8 * 2 * 64 * 2 * 2);
  EXPECT_EQ(config.kv_bytes_per_token(DType::f32), 8 * 2 * 64 * 2 * 4);
}

TEST_F(ConfigTest, MissingKeysMeanWhatTheyMeanInTransformers) {
  struct Case {
    const char* type;
    std::int64_t vocab, intermediate, kv_heads, head_dim, max_position;
    Token bos;
    std::vector<Token> eos;
    bool qkv_bias, qk_norm;
    Windows window;
  };
  const std::vector<Case> cases = {
      {"llama", 32000, 11008, 32, 128, 2048, 1, {2}, false, false, {}},
      {"mistral", 32000, 14336, 8, 128, 131072, 1, {2}, false, false, Windows(32, 4096)},
      {"qwen2", 151936, 22016, 32, 128, 32768, -1, {}, true, false, {}},
      {"qwen3", 151936, 22016, 32, 128, 32768, -1, {}, false, true, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.type);
    const ModelConfig config = load({{"model_type", c.type}});
    EXPECT_EQ(config.model_type, c.type);
    EXPECT_EQ(config.vocab_size, c.vocab);
    EXPECT_EQ(config.hidden_size, 4096);
    EXPECT_EQ(config.intermediate_size, c.intermediate);
    EXPECT_EQ(config.attention.layers, 32);
    EXPECT_EQ(config.attention.q_heads, 32);
    EXPECT_EQ(config.attention.kv_heads, c.kv_heads);
    EXPECT_EQ(config.attention.head_dim, c.head_dim);
    EXPECT_EQ(config.attention.sliding_window, c.window);
    EXPECT_EQ(config.max_position, c.max_position);
    EXPECT_EQ(config.rms_norm_eps, 1e-6);
    EXPECT_EQ(config.rope_theta, 10000);
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
    EXPECT_EQ(config.bos, c.bos);
    EXPECT_EQ(config.eos, c.eos);
    EXPECT_EQ(config.qkv_bias, c.qkv_bias);
    EXPECT_EQ(config.qk_norm, c.qk_norm);
    EXPECT_FALSE(config.o_bias || config.mlp_bias || config.tied_embeddings);
  }
}

TEST_F(ConfigTest, BiasKeysWorkInTheFamiliesThatReadThem) {
  const Json all = {{"attention_bias", true}, {"mlp_bias", true}};
  struct Case {
    const char* type;
    bool qkv, o, mlp;
  };
  for (const Case& c : {Case{"llama", true, true, true}, Case{"mistral", false, false, false},
                        Case{"qwen2", true, false, false}, Case{"qwen3", true, true, false}}) {
    SCOPED_TRACE(c.type);
    const ModelConfig config = load(config_of(c.type, all));
    EXPECT_EQ(config.qkv_bias, c.qkv);
    EXPECT_EQ(config.o_bias, c.o);
    EXPECT_EQ(config.mlp_bias, c.mlp);
  }
}

TEST_F(ConfigTest, HeadDimAndKvHeadsMayBeLeftOutOrNull) {
  EXPECT_EQ(load(config_of("llama")).attention.head_dim, 8);
  EXPECT_EQ(load(config_of("llama", {{"head_dim", nullptr}})).attention.head_dim, 8);
  EXPECT_EQ(load(config_of("mistral", {{"head_dim", 32}})).attention.head_dim, 32);
  EXPECT_EQ(load(config_of("qwen3")).attention.head_dim, 128);
  EXPECT_EQ(load(config_of("mistral", {{"num_key_value_heads", nullptr}})).attention.kv_heads, 8);
  EXPECT_EQ(load(config_of("qwen2", {{"num_key_value_heads", nullptr}})).attention.kv_heads, 8);
}

TEST_F(ConfigTest, RopeIsReadFromOldAndNewKeysAlike) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4}};
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 1024}};
  Json linear_theta = linear;
  linear_theta["rope_theta"] = 5e5;
  const auto expect = [&](const Json& changes, double theta, RopeScaling::Kind kind,
                          double factor) {
    SCOPED_TRACE(changes.dump());
    const ModelConfig config = load(config_of("llama", changes));
    EXPECT_EQ(config.rope_theta, theta);
    EXPECT_EQ(config.rope_scaling.kind, kind);
    EXPECT_EQ(config.rope_scaling.factor, factor);
  };
  using Kind = RopeScaling::Kind;
  expect({{"rope_theta", 1000000}}, 1e6, Kind::none, 1);
  expect({{"rope_theta", 5e5}, {"rope_scaling", nullptr}}, 5e5, Kind::none, 1);
  expect({{"rope_theta", 5e5}, {"rope_scaling", Json::object()}}, 5e5, Kind::none, 1);
  expect({{"rope_theta", 5e5}, {"rope_scaling", linear}}, 5e5, Kind::linear, 4);
  expect({{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}, 1e4, Kind::linear, 2.5);
  expect({{"rope_scaling", {{"type", "default"}}}}, 1e4, Kind::none, 1);
  expect({{"rope_scaling", {{"rope_type", "default"}, {"type", "yarn"}}}}, 1e4, Kind::none, 1);
  expect({{"rope_scaling", {{"rope_type", "default"}, {"factor", 8}}}}, 1e4, Kind::none, 1);
  expect({{"rope_parameters", {{"rope_theta", 5e5}}}}, 5e5, Kind::none, 1);
  expect({{"rope_parameters", linear_theta}}, 5e5, Kind::linear, 4);
  expect({{"rope_parameters", linear_theta}, {"rope_theta", 77}}, 5e5, Kind::linear, 4);
  expect({{"rope_parameters", linear}, {"rope_theta", 77}}, 77, Kind::linear, 4);
  expect({{"rope_parameters", linear_theta}, {"rope_scaling", llama3}}, 1e4, Kind::llama3, 8);
  expect({{"rope_parameters", linear_theta}, {"rope_scaling", nullptr}}, 5e5, Kind::linear, 4);
  expect({{"partial_rotary_factor", 1.0}}, 1e4, Kind::none, 1);

  const RopeScaling scaling = load(config_of("llama", {{"rope_scaling", llama3}})).rope_scaling;
  EXPECT_EQ(scaling.low_freq_factor, 1);
  EXPECT_EQ(scaling.high_freq_factor, 4);
  EXPECT_EQ(scaling.original_max_position, 1024);
  Json without_original = llama3;
  without_original.erase("original_max_position_embeddings");
  EXPECT_EQ(load(config_of("llama", {{"rope_parameters", without_original}}))
                .rope_scaling.original_max_position,
            4096);  // max_position_embeddings
}

TEST_F(ConfigTest, SlidingWindowsFollowTheFamily) {
  const auto windows = [&](const char* type, const Json& changes) {
    return load(config_of(type, changes)).attention.sliding_window;
  };
  const Json full_then_sliding =
      Json::array({"full_attention", "sliding_attention", "full_attention", "sliding_attention"});
  EXPECT_EQ(windows("llama", {{"sliding_window", 16}}), Windows{});
  EXPECT_EQ(windows("mistral", {{"sliding_window", 16}}), Windows(4, 16));
  EXPECT_EQ(windows("mistral", {{"sliding_window", nullptr}}), Windows{});
  for (const char* type : {"qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    EXPECT_EQ(windows(type, {{"sliding_window", 16}, {"max_window_layers", 2}}), Windows{});
    EXPECT_EQ(windows(type, {{"use_sliding_window", false}, {"sliding_window", 16}}), Windows{});
    EXPECT_EQ(
        windows(type,
                {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 3}}),
        (Windows{0, 0, 0, 16}));
    EXPECT_EQ(windows(type, {{"use_sliding_window", true}, {"max_window_layers", 0}}),
              Windows(4, 4096));
    EXPECT_EQ(windows(type, {{"use_sliding_window", true}, {"sliding_window", 16}}), Windows{});
    EXPECT_EQ(windows(type, {{"use_sliding_window", true}, {"sliding_window", nullptr}}),
              Windows{});
    EXPECT_EQ(windows(type, {{"use_sliding_window", true},
                             {"sliding_window", 16},
                             {"max_window_layers", 0},
                             {"layer_types", full_then_sliding}}),
              (Windows{0, 16, 0, 16}));
    EXPECT_EQ(windows(type, {{"layer_types", Json::array_t(4, "full_attention")}}), Windows{});
  }
}

TEST_F(ConfigTest, EndTokensOfGenerationConfigWin) {
  const auto load_both = [&](const Json& config, const Json& generation) {
    temp.write("generation_config.json", generation.dump());
    return load(config_of("llama", config));
  };
  EXPECT_EQ(load(config_of("llama", {{"eos_token_id", {5, 6}}})).eos, (std::vector<Token>{5, 6}));
  EXPECT_EQ(load(config_of("llama", {{"eos_token_id", nullptr}})).eos, std::vector<Token>{});
  EXPECT_EQ(load(config_of("llama", {{"bos_token_id", nullptr}})).bos, -1);
  EXPECT_EQ(load(config_of("qwen2", {{"eos_token_id", 7}, {"bos_token_id", 8}})).bos, 8);

  const Json both = {{"eos_token_id", 5}, {"bos_token_id", 4}};
  ModelConfig config = load_both(both, {{"eos_token_id", {7, 8, 9}}, {"bos_token_id", 3}});
  EXPECT_EQ(config.eos, (std::vector<Token>{7, 8, 9}));
  EXPECT_EQ(config.bos, 3);
  config = load_both(both, {{"eos_token_id", nullptr}, {"temperature", 0.6}});
  EXPECT_EQ(config.eos, std::vector<Token>{5});
  EXPECT_EQ(config.bos, 4);

  const std::string generation = (temp.path() / "generation_config.json").string();
  expect_error<FileError>(
      [&] {
        load_both(both, {{"eos_token_id", {7, 100}}});
      },
      generation + ": ", {"eos_token_id is [7,100]", "from 0 to 99"});
  expect_error<FileError>([&] { load_both(both, Json::array()); }, generation + ": ", {"object"});
  temp.write("generation_config.json", "{");
  expect_error<FileError>([&] { load(config_of("llama")); }, generation + ": ", {"not valid JSON"});
}

TEST_F(ConfigTest, WhatIsNotImplementedIsRefusedByKeyAndValue) {
  struct Case {
    Json changes;
    std::vector<std::string_view> says;
  };
  const auto scaling = [](const char* type) {
    return Json{{"rope_scaling", {{"rope_type", type}, {"factor", 2}}}};
  };
  const std::vector<Case> cases = {
      {{{"model_type", "phimoe"}},
       {"model_type is \"phimoe\"", "llama, mistral, ministral3, qwen2", "and glm4_moe_lite"}},
      {{{"model_type", "Llama"}}, {"model_type is \"Llama\""}},
      {{{"hidden_act", "gelu"}}, {"hidden_act is \"gelu\"", "silu"}},
      {{{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
       {"quantization_config.quant_method is \"bitsandbytes\"", "gptq"}},
      {{{"num_local_experts", 8}}, {"num_local_experts is 8", "dense"}},
      {{{"num_experts", 128}}, {"num_experts is 128"}},
      {{{"n_routed_experts", 64}}, {"n_routed_experts is 64"}},
      {{{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor is 0.5"}},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.25}}}},
       {"rope_parameters.partial_rotary_factor is 0.25"}},
      {scaling("proportional"),
       {"rope_scaling.rope_type is \"proportional\"", "linear", "llama3", "yarn", "longrope"}},
      {{{"rope_scaling", {{"type", "su"}}}}, {"rope_scaling.type is \"su\""}},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}},
       {"rope_parameters is {\"full_attention\"", "all layers"}},
      {{{"model_type", "qwen3"}, {"layer_types", Json::array_t(4, "chunked_attention")}},
       {"layer_types is [\"chunked_attention\"", "sliding_attention"}},
      {{{"per_layer_config", {{"0", {{"head_dim", 4}}}}}}, {"per_layer_config"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<Unsupported>([&] { load(config_of("llama", c.changes)); }, file() + ": ", c.says);
  }
}

TEST_F(ConfigTest, AbsurdValuesAreRefusedByKeyFoundAndExpected) {
  struct Case {
    const char* type;
    Json changes;
    std::vector<std::string_view> says;
  };
  const Json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  const auto llama3_with = [&](const char* key, const Json& value) {
    Json scaling = llama3;
    if (value.is_null()) {
      scaling.erase(key);
    } else {
      scaling[key] = value;
    }
    return Json{{"rope_scaling", scaling}};
  };
  const Json sliding = Json::array_t(4, "sliding_attention");
  const std::vector<Case> cases = {
      {"llama", {{"model_type", nullptr}}, {"model_type is null", "a string"}},
      {"llama", {{"model_type", 3}}, {"model_type is 3", "a string"}},
      {"llama", {{"hidden_act", 1}}, {"hidden_act is 1", "a string"}},
      {"llama", {{"num_hidden_layers", 0}}, {"num_hidden_layers is 0", "from 1 to 1000"}},
      {"llama", {{"num_hidden_layers", -3}}, {"num_hidden_layers is -3", "from 1 to 1000"}},
      {"llama", {{"num_hidden_layers", 1001}}, {"num_hidden_layers is 1001", "from 1 to 1000"}},
      {"llama", {{"num_hidden_layers", 4.0}}, {"num_hidden_layers is 4.0", "an integer"}},
      {"llama", {{"num_hidden_layers", "4"}}, {"num_hidden_layers is \"4\"", "an integer"}},
      {"llama", {{"num_hidden_layers", true}}, {"num_hidden_layers is true", "an integer"}},
      {"llama", {{"num_hidden_layers", nullptr}}, {"num_hidden_layers is null", "an integer"}},
      {"llama", {{"num_hidden_layers", {4}}}, {"num_hidden_layers is [4]", "an integer"}},
      {"llama", {{"num_hidden_layers", UINT64_MAX}}, {"18446744073709551615", "from 1 to 1000"}},
      {"llama", {{"vocab_size", std::int64_t{1} << 40}}, {"vocab_size is 1099511627776"}},
      {"llama", {{"vocab_size", 0}}, {"vocab_size is 0"}},
      {"llama", {{"hidden_size", 0}}, {"hidden_size is 0"}},
      {"llama", {{"hidden_size", std::int64_t{1} << 30}}, {"hidden_size is 1073741824"}},
      {"llama",
       {{"hidden_size", 66}},
       {"hidden_size is 66", "multiple of num_attention_heads (8)"}},
      {"qwen2", {{"hidden_size", 24}}, {"hidden_size is 24", "an even multiple"}},
      {"llama", {{"intermediate_size", -1}}, {"intermediate_size is -1"}},
      {"llama", {{"max_position_embeddings", 0}}, {"max_position_embeddings is 0"}},
      {"llama", {{"num_attention_heads", 0}}, {"num_attention_heads is 0"}},
      {"llama", {{"num_attention_heads", 1 << 20}}, {"num_attention_heads is 1048576"}},
      {"llama", {{"num_key_value_heads", 3}}, {"num_key_value_heads is 3", "divisor", "(8)"}},
      {"llama", {{"num_key_value_heads", 16}}, {"num_key_value_heads is 16", "divisor", "(8)"}},
      {"llama", {{"num_key_value_heads", 0}}, {"num_key_value_heads is 0", "from 1"}},
      {"llama", {{"head_dim", 0}}, {"head_dim is 0"}},
      {"llama", {{"head_dim", 7}}, {"head_dim is 7", "even"}},
      {"llama", {{"head_dim", 1 << 20}}, {"head_dim is 1048576"}},
      {"qwen3", {{"head_dim", nullptr}}, {"head_dim is null"}},
      {"llama", {{"rms_norm_eps", 0}}, {"rms_norm_eps is 0", "number from"}},
      {"llama", {{"rms_norm_eps", -1e-6}}, {"rms_norm_eps is -1e-06"}},
      {"llama", {{"rms_norm_eps", 2}}, {"rms_norm_eps is 2"}},
      {"llama", {{"rms_norm_eps", "NaN"}}, {"rms_norm_eps is \"NaN\""}},
      {"llama", {{"rms_norm_eps", {{"__float__", "NaN"}}}}, {"rms_norm_eps is {\"__float__\""}},
      {"llama", {{"rope_theta", 0}}, {"rope_theta is 0"}},
      {"llama", {{"rope_theta", -1e4}}, {"rope_theta is -10000.0"}},
      {"llama", {{"rope_theta", 1e300}}, {"rope_theta is 1e+300"}},
      {"llama", {{"rope_theta", "1e4"}}, {"rope_theta is \"1e4\""}},
      {"llama", {{"rope_parameters", 5}}, {"rope_parameters is 5", "an object"}},
      {"llama", {{"rope_scaling", {"linear"}}}, {"rope_scaling is [\"linear\"]", "an object"}},
      {"llama", {{"rope_parameters", {{"rope_theta", -1}}}}, {"rope_parameters.rope_theta is -1"}},
      {"llama", {{"rope_scaling", {{"type", 5}}}}, {"rope_scaling.type is 5", "a string"}},
      {"llama", {{"rope_scaling", {{"type", "linear"}}}}, {"rope_scaling.factor is missing"}},
      {"llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}, {"factor is 0"}},
      {"llama", {{"rope_scaling", {{"type", "linear"}, {"factor", "2"}}}}, {"factor is \"2\""}},
      {"llama", llama3_with("factor", nullptr), {"rope_scaling.factor is missing"}},
      {"llama", llama3_with("low_freq_factor", nullptr), {"low_freq_factor is missing"}},
      {"llama", llama3_with("low_freq_factor", 0), {"low_freq_factor is 0"}},
      {"llama", llama3_with("high_freq_factor", 1), {"high_freq_factor is 1", "more than"}},
      {"llama", llama3_with("original_max_position_embeddings", 0), {"is 0", "from 1"}},
      {"llama", {{"partial_rotary_factor", 2}}, {"partial_rotary_factor is 2"}},
      {"llama", {{"attention_bias", 1}}, {"attention_bias is 1", "true or false"}},
      {"llama", {{"mlp_bias", "no"}}, {"mlp_bias is \"no\"", "true or false"}},
      {"llama", {{"tie_word_embeddings", nullptr}}, {"tie_word_embeddings is null"}},
      {"llama", {{"bos_token_id", 100}}, {"bos_token_id is 100", "from 0 to 99"}},
      {"llama", {{"bos_token_id", -1}}, {"bos_token_id is -1", "from 0 to 99"}},
      {"llama", {{"eos_token_id", 100}}, {"eos_token_id is 100", "from 0 to 99"}},
      {"llama", {{"eos_token_id", {1, -1}}}, {"eos_token_id is [1,-1]", "from 0 to 99"}},
      {"llama", {{"eos_token_id", {{1}}}}, {"eos_token_id is [[1]]"}},
      {"llama", {{"eos_token_id", "</s>"}}, {"eos_token_id is \"</s>\""}},
      {"llama", {{"eos_token_id", 4294967297}}, {"eos_token_id is 4294967297"}},
      {"mistral", {{"sliding_window", 0}}, {"sliding_window is 0", "from 1"}},
      {"mistral", {{"sliding_window", -1}}, {"sliding_window is -1"}},
      {"mistral", {{"sliding_window", 16.5}}, {"sliding_window is 16.5"}},
      {"qwen2", {{"use_sliding_window", "yes"}}, {"use_sliding_window is \"yes\""}},
      {"qwen2",
       {{"use_sliding_window", true}, {"max_window_layers", -1}},
       {"max_window_layers is -1"}},
      {"qwen3", {{"layer_types", "full_attention"}}, {"layer_types is \"full_attention\""}},
      {"qwen3", {{"layer_types", {"full_attention"}}}, {"layer_types", "num_hidden_layers (4)"}},
      {"qwen3", {{"layer_types", sliding}}, {"sliding_window is missing", "use_sliding_window"}},
      {"qwen3",
       {{"layer_types", sliding}, {"sliding_window", 16}},
       {"sliding_window is 16", "use_sliding_window true"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.changes.dump());
    expect_error<FileError>([&] { load(config_of(c.type, c.changes)); }, file() + ": ", c.says);
  }
}

TEST_F(ConfigTest, TextThatIsNotOneJsonObjectIsRefused) {
  const std::vector<std::pair<std::string, std::string_view>> cases = {
      {"", "not valid JSON"},
      {"[]", "top level is []"},
      {"{}", "model_type is missing"},
      {R"({"model_type":"llama")", "not valid JSON"},
      {R"({"model_type":"llama","rms_norm_eps":NaN})", "rms_norm_eps"},
      {R"({"model_type":"llama","rms_norm_eps":1e999})", "1e999"},
      {R"({"model_type":"llama","model_type":"qwen2"})", "\"model_type\" twice"},
      {R"({"x":)" + std::string(1'000'000, '['), "64 deep"},
      {"{\"x\":\"\xff\"}", "not valid JSON"},
  };
  for (const auto& [text, says] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    temp.write("config.json", text);
    expect_error<FileError>([&] { ModelConfig::load(temp.path()); }, file() + ": ", {says});
  }
}

TEST_F(ConfigTest, MissingDirectoryOrFileIsNamed) {
  const auto load = [&](const std::filesystem::path& path) { ModelConfig::load(path); };
  const std::string directory = temp.path().string();
  expect_error<FileError>([&] { load(directory); }, directory + ": ", {"has no config.json"});
  expect_error<FileError>([&] { load(directory + "/a"); },
                          directory + "/a: ", {"there is no such directory"});
  temp.write("b", "");
  expect_error<FileError>([&] { load(directory + "/b"); }, directory + "/b: ",
                          {"not with the letters GGUF", "directory of a model"});
}

}  // namespace
}  // namespace topkv
