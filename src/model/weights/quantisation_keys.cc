#include "src/model/weights/quantisation_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "src/core/text/printable.h"
#include "src/model/families/config_keys.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Keys = std::span<const std::string_view>;

constexpr const char* where = "quantization_config";

// Which modules were left out is seen by their tensors.
constexpr std::string_view for_all[] = {"quant_method", "modules_to_not_convert", "ignore",
                                        "ignored_layers", "dequantize"};

constexpr std::string_view gptq_keys[] = {
    // read
    "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "dynamic",
    "is_marlin_format", "pack_dtype",
    // how the codes were found
    "quantizer", "meta", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential",
    "mse", "tokenizer", "dataset", "batch_size", "block_name_to_quantize",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "cache_block_outputs",
    "model_seqlen", "pad_token_id", "model_name_or_path", "model_file_base_name", "act_group_aware",
    // whether the output layer has codes is seen by its tensors
    "lm_head",
    // kernels
    "max_input_length", "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config",
    "use_marlin", "backend"};

constexpr std::string_view awq_keys[] = {
    // read; weights that are symmetric have their zero points all the same
    "bits", "group_size", "zero_point", "version", "sym",
    // kernels
    "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"};

// How activations are rounded, which is not done here: scale_fmt is of their scales.
constexpr std::string_view fp8_keys[] = {"fmt", "weight_block_size", "activation_scheme",
                                         "scale_fmt", "is_checkpoint_fp8_serialized"};

constexpr std::string_view compressed_keys[] = {
    // read, or refused where they say something
    "format", "config_groups", "sparsity_config", "transform_config",
    // of stored rows, which are held as the caller says
    "kv_cache_scheme",
    // notes
    "global_compression_ratio", "quantization_status", "version"};
constexpr std::string_view group_keys[] = {"weights", "format", "targets",
                                           // of activations, which are not rounded here
                                           "input_activations", "output_activations"};
constexpr std::string_view scheme_keys[] = {
    "num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder",
    "dynamic",
    // how scales were found, and their dtype, which the tensors have
    "observer", "observer_kwargs", "scale_dtype", "zp_dtype"};

Keys keys_of(std::string_view method) {
  if (method == "gptq") return gptq_keys;
  if (method == "awq") return awq_keys;
  if (method == "fp8") return fp8_keys;
  if (method == "compressed-tensors") return compressed_keys;
  return {};
}

/// prefix: the keys that lead to the object below quantization_config, each with a dot behind it.
void add_unread(const Json& object, Keys known, const std::string& prefix,
                std::vector<std::string>& unread) {
  const auto among = [](Keys keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
  };
  for (const auto& [key, value] : object.items()) {
    if (says_nothing(value) || among(known, key) || (prefix.empty() && among(for_all, key)))
      continue;
    unread.push_back(prefix + key_and_value(key, value));
  }
}

}  // namespace

std::string unread_quantisation_warning(const Json& config, const std::filesystem::path& file) {
  const auto it = config.find(where);
  if (it == config.end() || it->is_null()) return {};
  std::vector<std::string> unread;
  const auto method = it->at("quant_method").get<std::string>();
  add_unread(*it, keys_of(method), "", unread);
  if (method == "compressed-tensors") {  // parse takes one group
    const auto group = it->at("config_groups").begin();
    const std::string at = "config_groups." + printable_beginning(group.key()) + ".";
    add_unread(*group, group_keys, at, unread);
    add_unread(group->at("weights"), scheme_keys, at + "weights.", unread);
  }
  if (unread.empty()) return {};
  return fmt::format(
      "{}: {}: {}: unknown to topkv; if it says how the weights are stored, the model will not "
      "answer as its makers intended",
      path_text(file), where, listed(unread, 6));
}

}  // namespace topkv
