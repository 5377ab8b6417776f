#include "src/model/config/gguf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "src/core/text/printable.h"
#include "src/model/families/gguf_architecture.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t most_number = std::int64_t{1} << 40;
constexpr double most_factor = 1e9;

// Keys of an architecture that are read, or say nothing about the network. Of others there are
// those of families whose layers differ.
constexpr std::array<std::string_view, 24> known_keys = {
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
    "rope.scaling.attn_factor",
};
constexpr std::array<std::string_view, 2> window_keys = {"attention.sliding_window",
                                                         "attention.sliding_window_pattern"};
constexpr const char* sliding_base_key = "rope.freq_base_swa";
constexpr const char* final_cap_key = "final_logit_softcapping";

constexpr const char* rope_factors = "rope_freqs.weight";

bool has_windows(const Family& family) { return family.sliding == Family::Sliding::pattern; }
bool has_sliding_rope(const Family& family) { return family.sliding_rope_theta > 0; }

/// name: a key of the metadata, behind the architecture's name.
bool is_read(const Family& family, std::string_view name) {
  if (std::ranges::find(known_keys, name) != known_keys.end()) return true;
  if (has_windows(family) && std::ranges::find(window_keys, name) != window_keys.end()) return true;
  if (has_sliding_rope(family) && name == sliding_base_key) return true;
  if (family.final_softcap.has_value() && name == final_cap_key) return true;
  return name.starts_with("rope.scaling.yarn_");
}

class Translator {
 public:
  explicit Translator(const GgufFile& file)
      : file_(file),
        architecture_(architecture_of(file)),
        family_(architecture_.family()),
        prefix_(std::string(architecture_.name) + ".") {}

  Json read() {
    refuse_other_networks();
    const std::int64_t hidden = size("embedding_length");
    const std::int64_t heads = size("attention.head_count");
    const std::int64_t kv_heads =
        file_.integer(prefix_ + "attention.head_count_kv", 1, heads, heads);
    if (heads % kv_heads != 0) {
      file_.fail(prefix_ + "attention.head_count_kv",
                 fmt::format("a divisor of the {} heads (attention.head_count)", heads));
    }
    const std::string key_length = prefix_ + "attention.key_length";
    if (!file_.has(key_length) && hidden % (2 * heads) != 0) {
      file_.fail(prefix_ + "embedding_length",
                 fmt::format("an even multiple of the {} heads, because there is no {}", heads,
                             key_length));
    }
    head_dim_ = file_.integer(key_length, 2, most_number, hidden / heads);
    same("attention.value_length", "heads of keys and values of the same length");
    same("rope.dimension_count", "RoPE over the whole head");

    config_["model_type"] = architecture_.model_type;
    config_["hidden_size"] = hidden;
    config_["num_attention_heads"] = heads;
    config_["num_key_value_heads"] = kv_heads;
    config_["head_dim"] = head_dim_;
    config_["num_hidden_layers"] = size("block_count");
    config_["intermediate_size"] = size("feed_forward_length");
    config_["max_position_embeddings"] = size("context_length");
    config_["rms_norm_eps"] = file_.number(prefix_ + "attention.layer_norm_rms_epsilon", 0, 1);
    config_["vocab_size"] = vocabulary();
    config_["tie_word_embeddings"] = !has_tensor("output.weight");
    if (architecture_.model_type != "qwen2") {
      config_["attention_bias"] = has_tensor("blk.0.attn_q.bias");
    }
    if (architecture_.model_type == "llama") config_["mlp_bias"] = has_tensor("blk.0.ffn_up.bias");
    read_rope();
    read_scales();
    if (has_windows(family_)) read_windows();
    read_tokens();
    refuse_other_tensors();
    return std::move(config_);
  }

 private:
  std::int64_t size(const char* key) const { return file_.integer(prefix_ + key, 1, most_number); }
  bool has_tensor(std::string_view name) const {
    return file_.tensors().find(name) != file_.tensors().end();
  }

  void refuse_other_networks() const {
    if (file_.integer(prefix_ + "expert_count", 0, most_number, 0) > 0) {
      file_.unsupported(prefix_ + "expert_count",
                        "dense models in GGUF, and mixtures of experts from safetensors");
    }
    const std::string causal = prefix_ + "attention.causal";
    if (!file_.flag(causal, true)) file_.unsupported(causal, "models that read forwards");
  }

  /// What the network would not read belongs to another one: a bias, a norm, more layers.
  void refuse_other_tensors() const {
    std::set<std::string> known = {"token_embd.weight", "output_norm.weight", "output.weight"};
    if (!has_sliding_rope(family_)) known.insert(rope_factors);
    const bool qwen2 = architecture_.model_type == "qwen2";
    const bool biased = qwen2 || config_.value("attention_bias", false);
    const auto layers = config_["num_hidden_layers"].get<std::int64_t>();
    for (std::int64_t l = 0; l < layers && known.size() <= 2 * file_.tensors().size() + 64; ++l) {
      const std::string at = fmt::format("blk.{}.", l);
      for (const auto& names : {gguf_projections(), architecture_.norms}) {
        for (const auto& [ours, name] : names) known.insert(fmt::format("{}{}.weight", at, name));
      }
      if (biased) {
        for (const char* name : {"attn_q", "attn_k", "attn_v"}) known.insert(at + name + ".bias");
        if (!qwen2) known.insert(at + "attn_output.bias");
      }
      if (config_.value("mlp_bias", false)) {
        for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"})
          known.insert(at + name + ".bias");
      }
    }
    for (const auto& [name, tensor] : file_.tensors()) {
      if (known.contains(std::string(name))) continue;
      throw Unsupported(fmt::format(
          "{}: has tensor {}, which topkv does not read in a network of architecture {} with {} "
          "layers; expected a model without it",
          path_text(file_.path()), printable_beginning(name), architecture_.name, layers));
    }
  }

  void same(const char* key, std::string_view supported) const {
    if (file_.integer(prefix_ + key, 1, most_number, head_dim_) != head_dim_) {
      file_.unsupported(prefix_ + key, fmt::format("{} ({})", supported, head_dim_));
    }
  }

  std::int64_t vocabulary() const {
    const auto found = file_.tensors().find(std::string_view("token_embd.weight"));
    if (found == file_.tensors().end() || found->second.shape.size() != 2) {
      throw FileError(fmt::format(
          "{}: has no matrix token_embd.weight; expected the embedding of a model: a file with a "
          "part of one, such as an adapter or an encoder of images, cannot be run by itself",
          path_text(file_.path())));
    }
    return found->second.shape[0];
  }

  void read_rope() {
    const std::string at = prefix_ + "rope.";
    Json rope = {{"rope_type", "default"},
                 {"rope_theta", file_.number(at + "freq_base", 1, 1e30, family_.rope_theta)}};
    const std::string type_key = at + "scaling.type";
    // Without a type a factor is a linear one, as in llama.cpp.
    const bool factor_alone = file_.has(at + "scaling.factor");
    const std::string type = file_.text(type_key, factor_alone ? "linear" : "none");
    const auto factor = [&] {
      return file_.number(at + "scaling.factor", 1 / most_factor, most_factor);
    };
    const auto only_one = [&](const char* key, double one) {
      if (file_.number(at + key, 0, most_factor, one) != one) {
        file_.unsupported(at + key, fmt::format("{:g}", one));
      }
    };
    only_one("scale_linear", 1);  // of files from before 2024
    only_one("scaling.attn_factor", 1);
    only_one("scaling.yarn_attn_factor", 1);
    only_one("scaling.yarn_ext_factor", 1);
    only_one("scaling.yarn_log_multiplier", 0);
    if (has_sliding_rope(family_)) {
      if (type != "none" && type != "linear") {
        file_.unsupported(type_key,
                          fmt::format("\"none\" and \"linear\" in {}", architecture_.name));
      }
      if (type == "linear") rope.update({{"rope_type", type}, {"factor", factor()}});
      rope = {{"full_attention", rope}};
      if (const std::string key = prefix_ + sliding_base_key; file_.has(key)) {
        rope["sliding_attention"] = {{"rope_theta", file_.number(key, 1, 1e30)}};
      }
    } else if (has_tensor(rope_factors)) {
      if (type != "none") file_.unsupported(type_key, "\"none\" beside rope_freqs.weight");
    } else if (type == "linear" || type == "yarn") {
      rope["rope_type"] = type;
      rope["factor"] = factor();
      if (type == "yarn") read_yarn(at + "scaling.", rope);
    } else if (type != "none") {
      file_.unsupported(type_key, "\"none\", \"linear\" and \"yarn\"");
    }
    config_["rope_parameters"] = rope;
  }

  void read_yarn(const std::string& at, Json& rope) const {
    const auto take = [&](const char* key, const char* name) {
      if (file_.has(at + key)) rope[name] = file_.number(at + key, 0, most_factor);
    };
    take("yarn_beta_fast", "beta_fast");
    take("yarn_beta_slow", "beta_slow");
    const std::string original = at + "original_context_length";
    if (file_.has(original)) {
      rope["original_max_position_embeddings"] = file_.integer(original, 1, most_number);
    }
  }

  /// Which layers have the window is the architecture's, where the file does not say.
  void read_windows() {
    config_["sliding_window"] = size(window_keys[0].data());
    const std::string pattern = prefix_ + std::string(window_keys[1]);
    if (file_.has(pattern))
      config_["sliding_window_pattern"] = file_.integer(pattern, 1, most_number);
  }

  void read_scales() {
    if (family_.reads_query_scale) {
      const bool by_width = config_["num_hidden_layers"] == architecture_.layers_scaled_by_width;
      config_["query_pre_attn_scalar"] =
          by_width ? config_["hidden_size"].get<std::int64_t>() /
                         config_["num_attention_heads"].get<std::int64_t>()
                   : head_dim_;
    }
    if (const std::string key = prefix_ + final_cap_key;
        family_.final_softcap.has_value() && file_.number(key, 0, most_factor, 0) != 0) {
      config_["final_logit_softcapping"] = file_.number(key, 1 / most_factor, most_factor);
    }
  }

  void read_tokens() {
    constexpr const char* bos = "tokenizer.ggml.bos_token_id";
    const auto last = config_["vocab_size"].get<std::int64_t>() - 1;
    config_["bos_token_id"] = nullptr;
    if (file_.has(bos)) config_["bos_token_id"] = file_.integer(bos, 0, last);
    Json ends = Json::array();
    for (const std::int64_t token : end_tokens(file_)) {
      ends.push_back(static_cast<std::uint64_t>(token));
    }
    config_["eos_token_id"] = ends;
  }

  const GgufFile& file_;
  const GgufArchitecture& architecture_;
  const Family& family_;
  std::string prefix_;
  std::int64_t head_dim_ = 0;
  Json config_ = Json::object();
};

}  // namespace

Json config_of_gguf(const GgufFile& file) { return Translator(file).read(); }

std::vector<double> rope_factors_of_gguf(const GgufFile& file, std::int64_t pairs) {
  const auto found = file.tensors().find(std::string_view(rope_factors));
  if (found == file.tensors().end()) return {};
  const GgufFile::Tensor& tensor = found->second;
  const auto wrong = [&](const std::string& what) {
    throw FileError(fmt::format(
        "{}: tensor {} has {}; expected f32, shape [{}], factors from {} to {}",
        path_text(file.path()), rope_factors, what, pairs, 1 / most_factor, most_factor));
  };
  if (tensor.shape != std::vector{pairs})
    wrong(fmt::format("shape [{}]", fmt::join(tensor.shape, ", ")));
  if (tensor.type->name != "f32") wrong(fmt::format("type {}", tensor.type->name));
  std::vector<double> factors;
  for (std::int64_t i = 0; i < pairs; ++i) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + 4 * i, sizeof value);
    if (!(value >= 1 / most_factor && value <= most_factor))
      wrong(fmt::format("a factor {}", value));
    factors.push_back(value);
  }
  return factors;
}

std::string unread_gguf_warning(const GgufFile& file) {
  const GgufArchitecture& architecture = architecture_of(file);
  const Family& family = architecture.family();
  const std::string prefix = std::string(architecture.name) + ".";
  std::vector<std::string> unread;
  for (const std::string_view key : file.keys()) {
    const bool sampling = key.starts_with("general.sampling.");
    if (!sampling && !key.starts_with(prefix)) continue;
    const std::string_view name = key.substr(std::min(prefix.size(), key.size()));
    if (!sampling && is_read(family, name)) continue;
    unread.push_back(fmt::format("{} is {}", printable_beginning(key), file.shown_value(key)));
  }
  if (unread.empty()) return {};
  return fmt::format(
      "{}: {}: topkv does not read it; a model that needs it will not answer as its makers "
      "intended",
      path_text(file.path()), listed(unread, 6));
}

std::string gguf_chunks_warning(const GgufFile& file) {
  // Qwen2.5-1M and Qwen3-2507 were trained on so many positions.
  constexpr std::int64_t trained = 262144;
  const GgufArchitecture& architecture = architecture_of(file);
  if (!architecture.model_type.starts_with("qwen")) return {};
  const std::string prefix = std::string(architecture.name) + ".";
  const std::int64_t length = file.integer(prefix + "context_length", 1, INT64_MAX);
  if (length <= trained || file.has(prefix + "rope.scaling.type")) return {};
  return fmt::format(
      "{}: made for {} positions; GGUF has no keys for dual chunk attention, with which Qwens read "
      "more than {}: load such a model from its safetensors for longer texts",
      path_text(file.path()), length, trained);
}

std::vector<std::int64_t> end_tokens(const GgufFile& file) {
  std::vector<std::int64_t> tokens;
  const auto add = [&](std::int64_t token) {
    if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
  };
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (file.has(key)) add(file.integer(key, 0, INT32_MAX));
  }
  return tokens;
}

}  // namespace topkv
