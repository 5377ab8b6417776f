// Architectures of GGUF files: what a file says of one, what it leaves to the architecture, and
// what belongs to another network of the same name. What they compute is in the fixtures of
// parity_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// A Llama's file under another name. Norms that the architecture calls otherwise are not looked at
/// by ModelConfig::load.
gguf::File called(const std::string& architecture) {
  gguf::File file = gguf::llama(config_of({}), random_tensors({}));
  for (gguf::Value& value : file.values) {
    if (value.key.starts_with("llama.")) value.key.replace(0, 5, architecture);
  }
  file.set(gguf::words("general.architecture", architecture));
  return file;
}

/// Several tensors of each layer as one, behind each other.
void join(gguf::File& file, const std::vector<std::string>& names, const std::string& into) {
  for (const std::string at : {"blk.0.", "blk.1."}) {
    gguf::Tensor all = file.tensor(at + names.front());
    all.name = at + into;
    for (std::size_t i = 1; i < names.size(); ++i) {
      const gguf::Tensor& one = file.tensor(at + names[i]);
      all.dims.back() += one.dims.back();
      all.bytes += one.bytes;
    }
    for (const std::string& name : names)
      std::erase_if(file.tensors, [&](const gguf::Tensor& one) { return one.name == at + name; });
    file.tensors.push_back(all);
  }
}

void join_qkv(gguf::File& file, const std::string& kind) {
  join(file, {"attn_q." + kind, "attn_k." + kind, "attn_v." + kind}, "attn_qkv." + kind);
}

gguf::File phi3() {
  gguf::File file = called("phi3");
  join_qkv(file, "weight");
  join(file, {"ffn_gate.weight", "ffn_up.weight"}, "ffn_up.weight");
  return file;
}

class GgufArchitectures : public testing::Test {
 protected:
  std::filesystem::path write(const gguf::File& file) const {
    return temp_.write("model.gguf", file.content());
  }
  ModelConfig load(const gguf::File& file) const { return ModelConfig::load(write(file)); }

  template <class E>
  void expect_refused(const gguf::File& file, const std::vector<std::string_view>& parts) const {
    const std::filesystem::path path = write(file);
    expect_error<E>([&] { Model::load(path); }, path.string() + ": ", parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, path.string() + ": ", parts);
  }

  TempDirectory temp_;
};

TEST_F(GgufArchitectures, QKAndVMayBeOneTensor) {
  gguf::File file = called("qwen2");
  for (const std::string at : {"blk.0.", "blk.1."}) {
    for (const auto& [name, size] :
         {std::pair{"attn_q.bias", 160U}, {"attn_k.bias", 80U}, {"attn_v.bias", 80U}}) {
      std::vector<double> values(size);
      for (std::size_t i = 0; i < size; ++i)
        values[i] = std::sin(static_cast<double>(i) + static_cast<double>(size) + at[4]);
      file.tensors.push_back({at + name, {size}, 0, bytes_of_floats(values)});
    }
  }
  std::ranges::reverse(file.tensors);
  const auto tokens = some_tokens(20, 101);
  const auto logits = logits_both_ways(Model::load(write(file)), tokens);
  for (const char* kind : {"weight", "bias"}) {
    join_qkv(file, kind);
    EXPECT_EQ(logits_both_ways(Model::load(write(file)), tokens), logits) << kind;
  }
  gguf::File twice = file;
  twice.tensors.push_back(called("qwen2").tensor("blk.0.attn_q.weight"));
  expect_refused<FileError>(twice, {"blk.0.attn_qkv.weight and blk.0.attn_q.weight"});
  gguf::File wrong = file;
  wrong.tensor("blk.1.attn_qkv.weight").dims[1] -= 2;
  expect_refused<FileError>(wrong, {"attn_qkv.weight has shape [318, 96]", "[320, 96]"});
  wrong = file;
  wrong.tensor("blk.1.attn_qkv.bias").dims[0] -= 2;
  expect_refused<FileError>(wrong, {"attn_qkv.bias has shape [318]", "[320]"});
  std::erase_if(file.tensors,
                [](const gguf::Tensor& one) { return one.name == "blk.1.attn_qkv.weight"; });
  expect_refused<FileError>(file, {"has no tensor blk.1.attn_q.weight", "[160, 96]"});
}

TEST_F(GgufArchitectures, Mistral3IsALlamaWhoseQueriesMayGrow) {
  const auto tokens = some_tokens(20, 101);
  const auto logits = logits_both_ways(Model::load(write(called("llama"))), tokens);
  gguf::File file = called("mistral3");
  const Model model = Model::load(write(file));
  EXPECT_EQ(model.config().model_type, "ministral3");
  EXPECT_EQ(model.config().query_growth.beta, 0);
  EXPECT_TRUE(model.config().attention.sliding_window.empty());
  EXPECT_TRUE(model.config().warnings.empty()) << model.config().warnings.front();
  EXPECT_EQ(logits_both_ways(model, tokens), logits);
  file.set(gguf::real("mistral3.attention.temperature_scale", 0.25F));
  expect_refused<FileError>(file, {"rope.scaling.original_context_length is missing"});
  file.set(gguf::number("mistral3.rope.scaling.original_context_length", 8));
  const ModelConfig config = load(file);
  EXPECT_EQ(config.query_growth.beta, 0.25);
  EXPECT_EQ(config.query_growth.length, 8);
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_NE(logits_both_ways(Model::load(write(file)), tokens), logits);
  file.set(gguf::words("mistral3.rope.scaling.type", "yarn"));
  file.set(gguf::real("mistral3.rope.scaling.factor", 4));
  EXPECT_GT(load(file).rope_scaling.attention_factor, 1);
  file.set(gguf::real("mistral3.rope.scaling.yarn_log_multiplier", 1));
  EXPECT_EQ(load(file).rope_scaling.attention_factor, 1);
  file.set(gguf::real("mistral3.attention.temperature_scale", -0.1F));
  expect_refused<FileError>(file, {"attention.temperature_scale is -0.1"});
  gguf::File other = called("llama");
  other.set(gguf::real("llama.attention.temperature_scale", 0.1F));
  expect_refused<Unsupported>(other, {"attention.temperature_scale is 0.1"});
}

TEST_F(GgufArchitectures, GraniteIsALlamaWithFactors) {
  const auto tokens = some_tokens(20, 101);
  gguf::File file = called("granite");
  EXPECT_FLOAT_EQ(load(file).attention.scale, 1 / std::sqrt(80.0F));
  const auto logits = logits_both_ways(Model::load(write(file)), tokens);
  // As files of Granite 4.0 are, which has other models with recurrent layers.
  file.set(gguf::integers("granite.attention.head_count_kv", {1, 1}));
  file.set(gguf::number("granite.ssm.conv_kernel", 4));
  file.set(gguf::number("granite.expert_shared_feed_forward_length", 128));
  const Model model = Model::load(write(file));
  EXPECT_EQ(model.config().model_type, "granite");
  EXPECT_TRUE(model.config().warnings.empty()) << model.config().warnings.front();
  EXPECT_EQ(logits_both_ways(model, tokens), logits);
  file.set(gguf::real("granite.residual_scale", 0.25F));
  EXPECT_EQ(load(file).residual_scale, 0.25);
  EXPECT_NE(logits_both_ways(Model::load(write(file)), tokens), logits);
  file.set(gguf::integers("granite.attention.head_count_kv", {1, 0}));
  expect_refused<FileError>(file, {"head_count_kv is ", "a number above 0 for each layer"});
}

TEST_F(GgufArchitectures, WhatGemma2sFilesDoNotSayIsTheArchitectures) {
  gguf::File file = called("gemma2");
  ModelConfig config = load(file);
  EXPECT_EQ(config.model_type, "gemma2");
  EXPECT_EQ(config.attention.sliding_window, (std::vector<std::int64_t>{4096, 0}));
  EXPECT_EQ(config.attention.softcap, 50);
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_FLOAT_EQ(config.attention.scale, 1 / std::sqrt(80.0F));
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  file.set(gguf::number("gemma2.attention.sliding_window", 64));
  file.set(gguf::real("gemma2.attn_logit_softcapping", 20));
  file.set(gguf::real("gemma2.final_logit_softcapping", 0));
  file.set(gguf::number("gemma2.block_count", 46));  // Gemma 2 27B
  config = load(file);
  EXPECT_EQ(config.attention.sliding_window[44], 64);
  EXPECT_EQ(config.attention.softcap, 20);
  EXPECT_EQ(config.final_softcap, 0);
  EXPECT_FLOAT_EQ(config.attention.scale, 1 / std::sqrt(48.0F));
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  file.set(gguf::real("gemma2.attn_logit_softcapping", -1));
  expect_refused<FileError>(file, {"attn_logit_softcapping is -1"});
}

TEST_F(GgufArchitectures, Phi3sWindowAndFactorsAreRead) {
  gguf::File file = phi3();
  file.set(gguf::number("phi3.attention.sliding_window", 0));  // of Phi-4
  ModelConfig config = load(file);
  EXPECT_EQ(config.model_type, "phi3");
  EXPECT_TRUE(config.attention.sliding_window.empty());
  EXPECT_EQ(config.rotary_dim, 80);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  file.set(gguf::number("phi3.attention.sliding_window", 37));
  file.set(gguf::number("phi3.rope.dimension_count", 60));
  file.set(gguf::number("phi3.rope.scaling.original_context_length", 128));
  EXPECT_EQ(load(file).attention.sliding_window, (std::vector<std::int64_t>{37, 37}));
  EXPECT_EQ(load(file).rotary_dim, 60);

  const auto factors = [](float value) {
    return bytes_of_floats(std::vector<double>(30, double{value}));
  };
  file.tensors.push_back({"rope_factors_short.weight", {30}, 0, factors(1.5F)});
  expect_refused<FileError>(file, {"tensor rope_factors_long.weight is missing"});
  file.tensors.push_back({"rope_factors_long.weight", {30}, 0, factors(4)});
  file.set(gguf::real("phi3.rope.scaling.attn_factor", 1.25F));
  config = load(file);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(config.rope_scaling.pair_factors, std::vector<double>(30, 4));
  EXPECT_EQ(config.rope_scaling.attention_factor, 1.25);
  EXPECT_EQ(config.rope_scaling.original_max_position, 128);
  EXPECT_EQ(config.reach(), 512);
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  EXPECT_EQ(ModelConfig::load(write(file), 100).rope_scaling.pair_factors,
            std::vector<double>(30, 1.5));

  gguf::File wrong = file;
  wrong.tensor("rope_factors_short.weight").dims[0] = 29;
  expect_refused<FileError>(wrong, {"rope_factors_short.weight has shape [29]", "[30]"});
  wrong = file;
  wrong.tensor("rope_factors_long.weight").bytes = factors(0);
  expect_refused<FileError>(wrong, {"rope_factors_long.weight has a factor 0"});
  wrong = file;
  std::erase_if(wrong.tensors,
                [](const gguf::Tensor& t) { return t.name == "rope_factors_short.weight"; });
  expect_refused<FileError>(wrong, {"tensor rope_factors_short.weight is missing"});
  wrong = phi3();
  wrong.set(gguf::real("phi3.rope.scaling.attn_factor", 1.25F));
  expect_refused<Unsupported>(wrong, {"scaling.attn_factor is 1.25"});
  wrong = file;
  wrong.set(gguf::words("phi3.rope.scaling.type", "yarn"));
  expect_refused<Unsupported>(wrong, {"scaling.type is \"yarn\"", "longrope"});
  expect_refused<Unsupported>(called("phi3"), {"which topkv does not read"});
  wrong = phi3();
  wrong.tensor("blk.0.ffn_up.weight").dims[1] = 320;
  expect_refused<FileError>(wrong, {"ffn_up.weight has shape [320, 96]", "[640, 96]"});
}

TEST_F(GgufArchitectures, APartOfAHeadIsTurned) {
  gguf::File file = called("glm4");
  join(file, {"ffn_gate.weight", "ffn_up.weight"}, "ffn_up.weight");
  file.erase("glm4.rope.dimension_count");
  EXPECT_EQ(load(file).rotary_dim, 40);
  EXPECT_TRUE(load(file).rope_interleaved);
  for (const std::uint32_t dims : {2U, 14U, 56U, 78U, 80U}) {
    file.set(gguf::number("glm4.rope.dimension_count", dims));
    EXPECT_EQ(load(file).rotary_dim, dims);
  }
  for (const std::uint32_t dims : {0U, 41U, 82U}) {
    file.set(gguf::number("glm4.rope.dimension_count", dims));
    expect_refused<FileError>(file, {"dimension_count is " + std::to_string(dims)});
  }
}

TEST_F(GgufArchitectures, OtherNetworksOfTheSameNameAreRefused) {
  const auto expect = [&](const char* architecture, const gguf::Value& value,
                          const std::vector<std::string_view>& says) {
    gguf::File file = called(architecture);
    file.set(value);
    expect_refused<Unsupported>(file, says);
  };
  expect("olmo2", gguf::number("olmo2.attention.sliding_window", 4096),
         {"olmo2.attention.sliding_window is 4096"});  // OLMo 3
  expect("glm4", gguf::integers("glm4.rope.dimension_sections", {8, 12, 12, 0}),
         {"rope.dimension_sections is an array of 4 int32s"});  // GLM-4V
}

}  // namespace
}  // namespace topkv
