// LFM2, Granite 4 H, Nemotron-H and Nemotron 3 in GGUF files: what their metadata says of layers and sizes, and
// what is refused. What they compute is in the fixtures of parity_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/gguf_reader.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

class GgufRecurrences : public testing::Test {
 protected:
  static gguf::File fixture(const std::string& name) {
    return gguf::Reader(std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name /
                        "model.gguf")
        .read();
  }
  std::filesystem::path write(const gguf::File& file) const {
    return temp_.write("model.gguf", file.content());
  }
  ModelConfig config(const gguf::File& file) const { return ModelConfig::load(write(file)); }

  /// of: the fixture. Both what loads the file and what plans it refuse it.
  template <class E>
  void expect_refused(const std::string& of, const std::function<void(gguf::File&)>& change,
                      const std::vector<std::string_view>& parts) const {
    SCOPED_TRACE(parts.front());
    gguf::File file = fixture(of);
    change(file);
    const std::filesystem::path path = write(file);
    expect_error<E>([&] { Model::load(path); }, path.string() + ": ", parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, path.string() + ": ", parts);
  }

  TempDirectory temp_;
};

using Sizes = std::vector<std::int64_t>;

TEST_F(GgufRecurrences, Lfm2SaysWhichLayersAreConvolutionsByTheirHeads) {
  const ModelConfig found = config(fixture("gguf-lfm2"));
  EXPECT_EQ(found.model_type, "lfm2");
  EXPECT_EQ(found.convolution.width, 64);
  EXPECT_EQ(found.convolution.kernel, 3);
  EXPECT_EQ(found.attention.state_size, (Sizes{128, 128, 0, 128}));
  EXPECT_EQ(found.attention.kv_heads, 1);
  EXPECT_EQ(found.intermediate_size, 64);
  EXPECT_NEAR(found.rms_norm_eps, 1e-4, 1e-9);
  EXPECT_TRUE(found.tied_embeddings);
  EXPECT_TRUE(found.warnings.empty()) << found.warnings.front();
}

TEST_F(GgufRecurrences, GraniteSaysItsSizesAndFactors) {
  const ModelConfig dense = config(fixture("gguf-granite-h"));
  EXPECT_EQ(dense.model_type, "granitemoehybrid");
  EXPECT_EQ(dense.mamba.heads, 4);
  EXPECT_EQ(dense.mamba.head_dim, 32);
  EXPECT_EQ(dense.mamba.groups, 2);
  EXPECT_EQ(dense.mamba.state_dim, 16);
  EXPECT_EQ(dense.mamba.kernel, 4);
  EXPECT_TRUE(dense.mamba_bias);
  const std::int64_t size = dense.mamba.state_size();
  EXPECT_EQ(dense.attention.state_size, (Sizes{size, size, 0}));
  EXPECT_EQ(dense.layer_rope, std::vector<LayerRope>(3, LayerRope::none));
  EXPECT_EQ(dense.mixture.experts, 0);
  EXPECT_EQ(dense.embedding_scale, 3);
  EXPECT_EQ(dense.attention.scale, 0.2F);
  EXPECT_NEAR(dense.residual_scale, 0.4, 1e-7);
  EXPECT_NEAR(dense.logit_scale, 1 / 1.5, 1e-7);
  EXPECT_TRUE(dense.warnings.empty()) << dense.warnings.front();

  const ModelConfig mixture = config(fixture("gguf-granite-h-moe"));
  EXPECT_EQ(mixture.mixture.experts, 4);
  EXPECT_EQ(mixture.mixture.intermediate_size, 32);
  EXPECT_EQ(mixture.intermediate_size, 64);
  EXPECT_EQ(mixture.mixture.shared_intermediate_size, 64);
  EXPECT_TRUE(mixture.layer_rope.empty());
  EXPECT_TRUE(mixture.rope_interleaved);
  EXPECT_TRUE(mixture.warnings.empty()) << mixture.warnings.front();

  gguf::File plain = fixture("gguf-granite-h");
  for (const char* key : {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"})
    plain.erase(std::string("granitehybrid.") + key);
  const ModelConfig one = config(plain);
  EXPECT_FLOAT_EQ(one.attention.scale, 1 / std::sqrt(64.0F));
  EXPECT_EQ(one.embedding_scale, 1);
  EXPECT_EQ(one.residual_scale, 1);
  EXPECT_EQ(one.logit_scale, 1);
}

TEST_F(GgufRecurrences, NemotronSaysWhichLayersAreMlps) {
  const ModelConfig found = config(fixture("gguf-nemotron-h"));
  EXPECT_EQ(found.model_type, "nemotron_h");
  ASSERT_EQ(found.attention.layers, 4);
  const std::int64_t size = found.mamba.state_size();
  EXPECT_EQ(found.attention.state_size, (Sizes{size, size, size, 0}));
  std::vector<std::pair<std::int64_t, std::int64_t>> stored;
  for (const auto& layer : found.stored_layers) stored.emplace_back(layer.mixer, layer.mlp);
  EXPECT_EQ(stored, (std::vector<std::pair<std::int64_t, std::int64_t>>{
                        {0, 1}, {2, -1}, {3, 4}, {5, 6}}));
  EXPECT_EQ(found.intermediate_size, 64);
  EXPECT_EQ(found.attention.head_dim, 64);
  EXPECT_TRUE(found.warnings.empty()) << found.warnings.front();
}

TEST_F(GgufRecurrences, Nemotron3SaysItsExpertsAndDrafts) {
  const gguf::File file = fixture("gguf-nemotron-h-moe");
  const ModelConfig found = config(file);
  EXPECT_EQ(found.model_type, "nemotron_h");
  const ExpertMixture& mixture = found.mixture;
  EXPECT_EQ(mixture.layers, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(mixture.experts, 6);
  EXPECT_EQ(mixture.per_token, 2);
  EXPECT_EQ(mixture.intermediate_size, 32);
  EXPECT_EQ(mixture.shared_intermediate_size, 64);
  EXPECT_TRUE(mixture.sigmoid && mixture.choice_bias && mixture.sums_to_one);
  EXPECT_EQ(mixture.scale, 2.5);
  EXPECT_EQ(mixture.groups, 1);
  EXPECT_TRUE(found.warnings.empty()) << found.warnings.front();
  EXPECT_EQ(found.attention.layers, 3);

  // A block behind the layers that drafts tokens, as files of larger models have one.
  gguf::File drafting = file;
  drafting.set(gguf::number("nemotron_h_moe.block_count", 6));
  drafting.set(gguf::number("nemotron_h_moe.nextn_predict_layers", 1));
  drafting.set(gguf::integers("nemotron_h_moe.attention.head_count_kv", {0, 0, 1, 0, 0, 1}));
  drafting.set(gguf::integers("nemotron_h_moe.feed_forward_length", {0, 32, 0, 32, 0, 32}));
  gguf::Tensor norm = drafting.tensor("blk.0.attn_norm.weight");
  norm.name = "blk.5.nextn.enorm.weight";
  drafting.tensors.push_back(norm);
  const Model model = Model::load(write(drafting));
  EXPECT_EQ(model.config().attention.layers, 3);
  EXPECT_TRUE(model.config().warnings.empty()) << model.config().warnings.front();

  gguf::File plain = file;
  plain.set(gguf::real("nemotron_h_moe.expert_weights_scale", 0));
  plain.erase("nemotron_h_moe.expert_weights_norm");
  plain.erase("nemotron_h_moe.expert_shared_count");
  plain.erase("nemotron_h_moe.expert_group_count");
  const ModelConfig other = config(plain);
  EXPECT_EQ(other.mixture.scale, 1);
  EXPECT_FALSE(other.mixture.sums_to_one);
  EXPECT_EQ(other.mixture.groups, 1);
}

TEST_F(GgufRecurrences, Lfm2SaysItsExpertsBehindDenseLayers) {
  const gguf::File file = fixture("gguf-lfm2-moe");
  const ModelConfig found = config(file);
  EXPECT_EQ(found.model_type, "lfm2_moe");
  const ExpertMixture& mixture = found.mixture;
  EXPECT_EQ(mixture.layers, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(mixture.experts, 6);
  EXPECT_EQ(mixture.per_token, 2);
  EXPECT_EQ(mixture.intermediate_size, 32);
  EXPECT_EQ(found.intermediate_size, 64);
  EXPECT_TRUE(mixture.sigmoid && mixture.choice_bias && mixture.sums_to_one);
  EXPECT_EQ(mixture.least_sum, 1e-6);
  EXPECT_EQ(mixture.scale, 1);
  EXPECT_EQ(found.attention.state_size, (Sizes{128, 0, 128}));
  EXPECT_TRUE(found.tied_embeddings);
  EXPECT_TRUE(found.warnings.empty()) << found.warnings.front();

  gguf::File unbiased = file;
  std::erase_if(unbiased.tensors, [](const gguf::Tensor& one) {
    return one.name.find("exp_probs_b") != one.name.npos;
  });
  EXPECT_FALSE(config(unbiased).mixture.choice_bias);
}

TEST_F(GgufRecurrences, NumbersThatCannotBeAreRefused) {
  const auto set = [](gguf::Value value) {
    return [value = std::move(value)](gguf::File& file) { file.set(value); };
  };
  expect_refused<FileError>("gguf-lfm2", set(gguf::integers("lfm2.attention.head_count_kv", {0, 0, 1})),
                            {"head_count_kv is ", "each of the 4 layers"});
  expect_refused<FileError>("gguf-lfm2",
                            set(gguf::integers("lfm2.attention.head_count_kv", {0, 1, 2, 0})),
                            {"head_count_kv is ", "one number from 1 to 2"});
  expect_refused<FileError>("gguf-lfm2",
                            set(gguf::integers("lfm2.attention.head_count_kv", {0, 0, 0, 0})),
                            {"head_count_kv is ", "one number"});
  expect_refused<FileError>("gguf-lfm2", set(gguf::number("lfm2.shortconv.l_cache", 1)),
                            {"shortconv.l_cache is 1"});
  expect_refused<FileError>("gguf-granite-h", set(gguf::number("granitehybrid.ssm.inner_size", 130)),
                            {"ssm.inner_size is 130", "4 heads"});
  expect_refused<FileError>("gguf-granite-h", set(gguf::number("granitehybrid.ssm.group_count", 3)),
                            {"ssm.time_step_rank is 4", "3 groups"});
  expect_refused<FileError>("gguf-granite-h", set(gguf::number("granitehybrid.ssm.state_size", 257)),
                            {"ssm.state_size is 257"});
  expect_refused<FileError>("gguf-granite-h", set(gguf::real("granitehybrid.residual_scale", -1)),
                            {"residual_scale is -1"});
  expect_refused<FileError>(
      "gguf-nemotron-h",
      set(gguf::integers("nemotron_h.feed_forward_length", {0, 64, 0, 0, 64, 64, 64})),
      {"feed_forward_length is ", "0 for layer 5, which is attention"});
  expect_refused<FileError>("gguf-nemotron-h-moe",
                            set(gguf::number("nemotron_h_moe.expert_used_count", 7)),
                            {"expert_used_count is 7"});
  expect_refused<FileError>("gguf-nemotron-h-moe",
                            set(gguf::number("nemotron_h_moe.expert_group_count", 4)),
                            {"n_group", "a divisor of n_routed_experts (6)"});
  expect_refused<FileError>(
      "gguf-nemotron-h-moe",
      set(gguf::integers("nemotron_h_moe.feed_forward_length", {0, 32, 0, 32})),
      {"feed_forward_length is ", "each of the 5 layers"});
  expect_refused<Unsupported>("gguf-nemotron-h-moe",
                              set(gguf::number("nemotron_h_moe.expert_shared_count", 2)),
                              {"n_shared_experts", "1"});
  for (const char* of : {"gguf-nemotron-h-moe", "gguf-lfm2-moe"}) {
    const std::string key =
        (of == std::string_view("gguf-lfm2-moe") ? "lfm2moe" : "nemotron_h_moe") +
        std::string(".expert_gating_func");
    expect_refused<Unsupported>(of, set(gguf::number(key, 1)),
                                {"expert_gating_func is 1", "sigmoids (2)"});
  }
}

TEST_F(GgufRecurrences, TensorsThatTheNetworkDoesNotReadAreRefused) {
  const auto add = [](const char* name, const char* as) {
    return [=](gguf::File& file) {
      gguf::Tensor tensor = file.tensor(as);
      tensor.name = name;
      file.tensors.push_back(tensor);
    };
  };
  expect_refused<Unsupported>("gguf-lfm2", add("blk.2.shortconv.in_proj.weight",
                                               "blk.1.shortconv.in_proj.weight"),
                              {"has tensor blk.2.shortconv.in_proj.weight"});
  expect_refused<Unsupported>("gguf-lfm2", add("blk.1.attn_q.weight", "blk.2.attn_q.weight"),
                              {"has tensor blk.1.attn_q.weight"});
  expect_refused<Unsupported>("gguf-lfm2", add("output_norm.weight", "token_embd_norm.weight"),
                              {"has tensor output_norm.weight"});
  expect_refused<Unsupported>("gguf-granite-h", add("blk.2.ssm_d", "blk.1.ssm_d"),
                              {"has tensor blk.2.ssm_d"});
  expect_refused<Unsupported>("gguf-nemotron-h", add("blk.0.ffn_up.weight", "blk.1.ffn_up.weight"),
                              {"has tensor blk.0.ffn_up.weight"});
  expect_refused<Unsupported>("gguf-nemotron-h", add("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"),
                              {"has tensor blk.1.ffn_gate.weight"});
  expect_refused<Unsupported>("gguf-nemotron-h", add("blk.1.attn_q.weight", "blk.5.attn_q.weight"),
                              {"has tensor blk.1.attn_q.weight"});
  expect_refused<Unsupported>(
      "gguf-nemotron-h-moe", add("blk.1.ffn_latent_down.weight", "blk.1.ffn_up_shexp.weight"),
      {"has tensor blk.1.ffn_latent_down.weight"});
  expect_refused<Unsupported>("gguf-nemotron-h-moe",
                              add("blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"),
                              {"has tensor blk.1.ffn_gate_exps.weight"});
  expect_refused<Unsupported>("gguf-nemotron-h-moe",
                              add("blk.1.ffn_up.weight", "blk.1.ffn_up_shexp.weight"),
                              {"has tensor blk.1.ffn_up.weight"});
  expect_refused<Unsupported>("gguf-nemotron-h-moe",
                              add("blk.0.exp_probs_b.bias", "blk.1.exp_probs_b.bias"),
                              {"has tensor blk.0.exp_probs_b.bias"});
  expect_refused<Unsupported>("gguf-lfm2-moe", add("blk.1.ffn_up.weight", "blk.0.ffn_up.weight"),
                              {"has tensor blk.1.ffn_up.weight"});
  expect_refused<Unsupported>(
      "gguf-lfm2-moe", add("blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight"),
      {"has tensor blk.0.ffn_up_exps.weight"});
  expect_refused<FileError>(
      "gguf-granite-h",
      [](gguf::File& file) { file.tensor("blk.0.ssm_norm.weight").dims = {1, 64}; },
      {"ssm_norm.weight has shape [64, 1]", "[128]"});
}

}  // namespace
}  // namespace topkv
