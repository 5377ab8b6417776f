// Keys of quantization_config: those that tools write beside how weights are stored pass without a
// word, those that are not known are told, and those that are known to store weights otherwise are
// refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Lines = std::vector<std::string>;

// As tools write them.
constexpr const char* gptq = R"({"quant_method": "gptq", "bits": 4, "group_size": 128,
    "desc_act": true, "sym": true, "lm_head": false, "damp_percent": 0.01, "batch_size": 1,
    "damp_auto_increment": 0.0025, "static_groups": true, "true_sequential": true,
    "model_name_or_path": "models/x", "model_file_base_name": "model", "pad_token_id": 0,
    "quantizer": ["gptqmodel:1.9"], "checkpoint_format": "gptq", "pack_dtype": "int32",
    "meta": {"quantizer": ["gptqmodel:1.9"], "mse": 0.0}, "dataset": "c4", "tokenizer": "x",
    "block_name_to_quantize": "model.layers", "module_name_preceding_first_block": ["a"],
    "modules_in_block_to_quantize": [["q_proj"]], "cache_block_outputs": true,
    "max_input_length": 4096, "model_seqlen": 4096, "use_cuda_fp16": true, "use_exllama": true,
    "exllama_config": {"version": 1}, "disable_exllama": true, "backend": "auto",
    "is_marlin_format": false})";
constexpr const char* awq = R"({"quant_method": "awq", "bits": 4, "group_size": 128,
    "zero_point": true, "version": "gemm", "backend": "autoawq", "do_fuse": true,
    "fuse_max_seq_len": 512, "modules_to_fuse": {"attention": ["q_proj"]},
    "exllama_config": {"version": 2}, "modules_to_not_convert": ["lm_head"]})";
constexpr const char* fp8 = R"({"quant_method": "fp8", "fmt": "e4m3",
    "weight_block_size": [128, 128], "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
    "modules_to_not_convert": ["lm_head"]})";
constexpr const char* mxfp4 = R"({"quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})";
constexpr const char* compressed = R"({"quant_method": "compressed-tensors",
    "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
      "format": "pack-quantized", "input_activations": null, "output_activations": null,
      "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
        "group_size": 128, "dynamic": false, "observer": "minmax", "observer_kwargs": {"a": 1},
        "block_structure": null, "actorder": "weight", "scale_dtype": "torch.bfloat16"}}},
    "ignore": ["lm_head"], "kv_cache_scheme": null, "sparsity_config": {}, "version": "0.12.2",
    "transform_config": {}, "global_compression_ratio": 1.5, "quantization_status": "compressed"})";

class QuantisationKeys : public testing::Test {
 protected:
  /// What is told of a configuration with these keys in place of its own.
  Lines told(const char* text, const Json& changes = Json::object()) const {
    Json keys = Json::parse(text);
    keys.merge_patch(changes);
    const Json config = {{"model_type", "llama"}, {"quantization_config", keys}};
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path()).warnings;
  }
  std::string begins() const {
    return (temp.path() / "config.json").string() + ": quantization_config";
  }
  TempDirectory temp;
};

TEST_F(QuantisationKeys, NotesOfToolsPassWithoutAWord) {
  for (const char* text : {gptq, awq, fp8, mxfp4, compressed}) EXPECT_EQ(told(text), Lines());
  // Rows are held as the caller says, activations as they are: weights are what they were.
  const Json activations = {{"num_bits", 8}, {"type", "float"}, {"dynamic", true}};
  EXPECT_EQ(told(compressed, {{"kv_cache_scheme", activations}}), Lines());
  EXPECT_EQ(
      told(compressed, {{"config_groups", {{"group_0", {{"input_activations", activations}}}}}}),
      Lines());
  EXPECT_EQ(told(gptq, {{"rotation", nullptr}, {"adapter", Json::object()}, {"other", false}}),
            Lines());
}

TEST_F(QuantisationKeys, OthersAreToldByKeyAndValue) {
  for (const char* text : {gptq, awq, fp8, mxfp4, compressed}) {
    const Lines lines = told(text, {{"rotation", "hadamard"}, {"levels", {1, 2}}});
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(
        lines[0],
        begins() +
            ": levels is [1,2], rotation is \"hadamard\": unknown to topkv; if it says how "
            "the weights are stored, the model will not answer as its makers intended");
  }
  const Json group = {{"scheme", "x"}, {"weights", {{"codebook", 7}}}};
  const Lines lines = told(compressed, {{"config_groups", {{"group_0", group}}}});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("config_groups.group_0.scheme is \"x\", "
                          "config_groups.group_0.weights.codebook is 7: unknown to topkv"),
            std::string::npos)
      << lines[0];
}

TEST_F(QuantisationKeys, KnownKeysThatStoreWeightsOtherwiseAreRefused) {
  const auto in_group = [](const Json& changes) {
    return Json{{"config_groups", {{"group_0", changes}}}};
  };
  const std::vector<std::pair<const char*, std::pair<Json, std::string_view>>> cases = {
      {gptq, {{{"is_marlin_format", true}}, "is_marlin_format is true"}},
      {gptq, {{{"pack_dtype", "int16"}}, "pack_dtype is \"int16\""}},
      {gptq, {{{"checkpoint_format", nullptr}, {"format", "marlin"}}, "format is \"marlin\""}},
      {compressed, {in_group({{"format", "marlin-24"}}), "group_0.format is \"marlin-24\""}},
      {compressed, {in_group({{"weights", {{"dynamic", true}}}}), "weights.dynamic is true"}},
  };
  for (const auto& [text, one] : cases) {
    SCOPED_TRACE(one.first.dump());
    expect_error<Unsupported>([&, &text = text, &changes = one.first] { told(text, changes); },
                              begins() + ".", {one.second});
  }
}

// Zero points of gptq are one less than they are, those of gptq_v2 are not.
TEST_F(QuantisationKeys, FormatOfGptqHasEitherNameAndOneValue) {
  EXPECT_EQ(told(gptq, {{"checkpoint_format", nullptr}, {"format", "gptq_v2"}}), Lines());
  EXPECT_EQ(told(gptq, {{"format", "gptq"}}), Lines());
  expect_error<FileError>(
      [&] {
        told(gptq, {{"format", "gptq_v2"}});
      },
      begins() + ".", {"format is \"gptq_v2\"", "checkpoint_format (\"gptq\") again"});
}

}  // namespace
}  // namespace topkv
