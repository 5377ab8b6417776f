#include "src/model/config/gguf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "src/core/text/printable.h"
#include "src/device/gated_delta.h"
#include "src/device/mamba2.h"
#include "src/model/families/gguf_architecture.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t most_number = std::int64_t{1} << 40;
constexpr std::int64_t most_experts = 1024;
constexpr double most_factor = 1e9;
constexpr double most_pair_factor = 1e31;  // of pairs that are as good as not turned

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
constexpr std::array<std::string_view, 4> expert_keys = {
    "expert_feed_forward_length", "expert_weights_norm", "expert_weights_scale",
    "expert_gating_func"};
constexpr std::array<std::string_view, 6> mamba_keys = {
    "ssm.conv_kernel",    "ssm.state_size", "ssm.group_count",
    "ssm.time_step_rank", "ssm.inner_size", "expert_shared_feed_forward_length"};
constexpr std::array<std::string_view, 4> multiplier_keys = {"attention.scale", "embedding_scale",
                                                             "residual_scale", "logit_scale"};
constexpr const char* same_epsilon_key = "attention.layer_norm_epsilon";  // of nemotron_h, too
constexpr const char* convolution_key = "shortconv.l_cache";
constexpr std::array<std::string_view, 5> global_keys = {
    "attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers",
    "embedding_length_per_layer_input", "rope.dimension_count_swa"};
constexpr const char* growth_key = "attention.temperature_scale";
constexpr const char* shared_expert_key = "expert_shared_feed_forward_length";
constexpr const char* drafts_key = "nextn_predict_layers";
constexpr const char* recurrent_layers_key = "attention.recurrent_layers";
constexpr const char* sections_key = "rope.dimension_sections";
constexpr std::array<std::string_view, 9> hybrid_keys = {
    "ssm.conv_kernel",    "ssm.state_size",     "ssm.group_count",
    "ssm.time_step_rank", "ssm.inner_size",     "full_attention_interval",
    drafts_key,           recurrent_layers_key, sections_key};
constexpr std::array<std::string_view, 4> latent_keys = {
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
    "attention.value_length_mla"};
constexpr std::array<std::string_view, 3> group_keys = {"expert_shared_count", "expert_group_count",
                                                        "expert_group_used_count"};
constexpr const char* dense_layers_key = "leading_dense_block_count";
constexpr const char* sliding_base_key = "rope.freq_base_swa";
constexpr const char* score_cap_key = "attn_logit_softcapping";
constexpr const char* final_cap_key = "final_logit_softcapping";

/// Of a matrix in nvfp4: a scale of all its values, and one for rounding what it meets, which topkv
/// does not round.
constexpr std::array<const char*, 3> matrix_kinds = {".weight", ".scale", ".input_scale"};

constexpr const char* rope_factors = "rope_freqs.weight";
constexpr const char* long_factors = "rope_factors_long.weight";
constexpr const char* short_factors = "rope_factors_short.weight";

bool has_windows(const Family& family) {
  return family.sliding == Family::Sliding::pattern ||
         family.sliding == Family::Sliding::all_layers;
}
bool is_latent(const Family& family) { return family.latent.kv_rank > 0; }
bool has_sliding_rope(const Family& family) { return family.sliding_rope_theta > 0; }
bool is_hybrid(const Family& family) { return family.delta.key_heads > 0; }
bool has_mamba(const Family& family) { return family.mamba.sizes.heads > 0; }
bool has_convolutions(const Family& family) { return family.convolution_kernel > 0; }
/// Whether routers choose as DeepSeek's do: by sigmoids, or in groups.
bool chooses(const Family& family) { return family.mixture.sigmoid || family.mixture.reads_groups; }

/// name: a key of the metadata, behind the architecture's name.
bool is_read(const Family& family, std::string_view name) {
  if (std::ranges::find(known_keys, name) != known_keys.end()) return true;
  if (family.mixture.experts > 0 && std::ranges::find(expert_keys, name) != expert_keys.end()) {
    return true;
  }
  if (family.mixture.shared > 0 && name == shared_expert_key) return true;
  if (is_hybrid(family) && std::ranges::find(hybrid_keys, name) != hybrid_keys.end()) return true;
  // Granite 4.0's files have them without such layers, too.
  if ((has_mamba(family) || family.reads_multipliers) &&
      std::ranges::find(mamba_keys, name) != mamba_keys.end())
    return true;
  if (family.reads_multipliers &&
      std::ranges::find(multiplier_keys, name) != multiplier_keys.end()) {
    return true;
  }
  if (has_convolutions(family) && name == convolution_key) return true;
  if (family.parts_apart && (name == same_epsilon_key || name == drafts_key)) return true;
  if (family.mixture.reads_groups && std::ranges::find(group_keys, name) != group_keys.end())
    return true;
  if (family.mixture.first_dense >= 0 && name == dense_layers_key) return true;
  if (is_latent(family) && std::ranges::find(latent_keys, name) != latent_keys.end()) return true;
  if (has_windows(family) && std::ranges::find(window_keys, name) != window_keys.end()) return true;
  if (has_sliding_rope(family) && name == sliding_base_key) return true;
  if (family.global_head_dim > 0 && std::ranges::find(global_keys, name) != global_keys.end()) {
    return true;
  }
  if (family.query_growth && name == growth_key) return true;
  if (family.final_softcap.has_value() && name == final_cap_key) return true;
  if (family.attention_softcap.has_value() && name == score_cap_key) return true;
  return name.starts_with("rope.scaling.yarn_");
}

/// A tensor with a factor for each pair that RoPE turns. Throws FileError for one that is missing.
std::vector<double> pair_factors(const GgufFile& file, std::string_view name, std::int64_t pairs) {
  const auto wrong = [&](const std::string& what) {
    throw FileError(fmt::format("{}: tensor {} {}; expected f32, shape [{}], factors from {} to {}",
                                path_text(file.path()), name, what, pairs, 1 / most_factor,
                                most_pair_factor));
  };
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) wrong("is missing");
  const GgufFile::Tensor& tensor = found->second;
  if (tensor.shape != std::vector{pairs})
    wrong(fmt::format("has shape [{}]", fmt::join(tensor.shape, ", ")));
  if (tensor.type->name != "f32") wrong(fmt::format("has type {}", tensor.type->name));
  std::vector<double> factors;
  for (std::int64_t i = 0; i < pairs; ++i) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + 4 * i, sizeof value);
    if (!(value >= 1 / most_factor && value <= most_pair_factor))
      wrong(fmt::format("has a factor {}", value));
    factors.push_back(value);
  }
  return factors;
}

class Translator {
 public:
  explicit Translator(const GgufFile& file)
      : file_(file),
        architecture_(architecture_of(file)),
        family_(architecture_.family()),
        prefix_(std::string(architecture_.name) + "."),
        blocks_(blocks_of(file, architecture_)) {}

  Json read() {
    refuse_other_networks();
    const std::int64_t hidden = size("embedding_length");
    const std::int64_t heads = size("attention.head_count");
    if (is_latent(family_)) {
      read_latent(heads);
    } else {
      read_heads(hidden, heads);
    }

    config_["model_type"] = architecture_.model_type;
    config_["hidden_size"] = hidden;
    config_["num_attention_heads"] = heads;
    config_["num_hidden_layers"] = blocks_.layers;
    read_mlp();
    config_["max_position_embeddings"] = size("context_length");
    config_[std::string(family_.rms_norm_eps_key)] =
        file_.number(prefix_ + "attention.layer_norm_rms_epsilon", 0, 1);
    config_["vocab_size"] = vocabulary();
    config_["tie_word_embeddings"] = !has_tensor("output.weight");
    if (is_hybrid(family_)) read_recurrences();
    if (has_mamba(family_)) read_mamba();
    if (has_convolutions(family_)) {
      config_["conv_L_cache"] = file_.integer(prefix_ + convolution_key, 2, 64);
      config_["block_auto_adjust_ff_dim"] = false;
      write_layer_types("conv");
    }
    if (family_.reads_attention_bias) {
      const std::string at = fmt::format("blk.{}.attn_q", first_attention_layer());
      config_["attention_bias"] = has_tensor(at + ".bias") || has_tensor(at + "kv.bias");
    }
    if (family_.reads_mlp_bias) {
      const auto first = mlps_.empty() ? 0 : std::ranges::find(mlps_, true) - mlps_.begin();
      config_["mlp_bias"] = has_tensor(fmt::format("blk.{}.ffn_up.bias", first));
    }
    read_rope();
    read_scales();
    if (has_windows(family_)) read_windows();
    if (family_.global_head_dim > 0) read_heads_of_layers();
    if (architecture_.experts) {
      if (chooses(family_)) {
        read_chosen_experts();
      } else {
        read_experts();
      }
    }
    read_tokens();
    refuse_other_tensors();
    return std::move(config_);
  }

 private:
  void read_heads(std::int64_t hidden, std::int64_t heads) {
    const std::int64_t kv_heads = read_kv_heads(heads);
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
    if (!family_.partial_rotary && !family_.never_rope)
      same("rope.dimension_count", "RoPE over the whole head");
    config_["num_key_value_heads"] = kv_heads;
    config_["head_dim"] = head_dim_;
  }

  /// Of llama.cpp's files since April 2025: heads as attention over latents sees them, and, behind
  /// _mla, as the network's own.
  void read_latent(std::int64_t heads) {
    const std::string at = prefix_ + "attention.";
    const std::string of_key = at + "key_length_mla";
    if (!file_.has(of_key)) {
      throw Unsupported(fmt::format(
          "{}: has no {}: the projections from latents are one tensor, as in files of before April "
          "2025; expected a file that a later llama.cpp has converted",
          path_text(file_.path()), of_key));
    }
    const std::int64_t rank = file_.integer(at + "kv_lora_rank", 1, most_number);
    const std::int64_t rope = file_.integer(prefix_ + "rope.dimension_count", 2, most_number);
    const auto is = [&](const std::string& key, std::int64_t value, const char* what) {
      if (file_.integer(key, 1, most_number, value) != value)
        file_.unsupported(key, fmt::format("{} ({})", what, value));
    };
    is(at + "head_count_kv", 1, "one KV head for all heads");
    is(at + "key_length", rank + rope, "kv_lora_rank + rope.dimension_count");
    is(at + "value_length", rank, "kv_lora_rank");
    config_["num_key_value_heads"] = heads;
    config_["kv_lora_rank"] = rank;
    config_["q_lora_rank"] = nullptr;
    if (const std::string key = at + "q_lora_rank"; file_.has(key))
      config_["q_lora_rank"] = file_.integer(key, 1, most_number);
    config_["qk_rope_head_dim"] = rope;
    config_["qk_nope_head_dim"] = file_.integer(of_key, rope + 1, most_number) - rope;
    config_["v_head_dim"] = file_.integer(at + "value_length_mla", 1, most_number);
  }

  std::int64_t size(const char* key) const { return file_.integer(prefix_ + key, 1, most_number); }
  bool has_tensor(std::string_view name) const {
    return file_.tensors().find(name) != file_.tensors().end();
  }

  void refuse_other_networks() const {
    const std::string causal = prefix_ + "attention.causal";
    if (!file_.flag(causal, true)) file_.unsupported(causal, "models that read forwards");
    // Of multimodal GLMs, and of OLMo 3, which share an architecture's name.
    const std::string temperature = prefix_ + growth_key;
    if (!family_.query_growth && file_.number(temperature, -most_factor, most_factor, 0) != 0) {
      file_.unsupported(temperature, "queries whose scale is that of all positions");
    }
    const std::string sections = prefix_ + sections_key;
    if (!is_hybrid(family_) && file_.has(sections))
      file_.unsupported(sections, "RoPE with one position for a token");
    const std::string window = prefix_ + "attention.sliding_window";
    if (architecture_.name == "olmo2" && file_.integer(window, 0, most_number, 0) > 0) {
      file_.unsupported(window, "layers that attend all positions in olmo2");
    }
  }

  /// A number for each layer, or one for all. Those that are not 0 have to agree, and `has` gets
  /// which layers have one; empty: the file has one number for all.
  std::int64_t read_each(const char* name, std::int64_t most, std::optional<std::int64_t> missing,
                         std::vector<bool>& has) const {
    const std::string key = prefix_ + name;
    const bool knows_lists = !architecture_.parts.empty() || family_.reads_multipliers;
    if (!knows_lists || !file_.has(key) || !file_.is_array(key))
      return file_.integer(key, 1, most, missing);
    const std::vector<std::int64_t> all = file_.integers(key);
    const auto wrong = [&] {
      file_.fail(key, fmt::format("for each of the {} layers (block_count) 0 or one number from 1 "
                                  "to {}",
                                  blocks_.layers + blocks_.drafts, most));
    };
    std::int64_t found = 0;
    if (std::ssize(all) != blocks_.layers + blocks_.drafts) wrong();
    for (std::int64_t l = 0; l < blocks_.layers; ++l) {
      const std::int64_t one = all[static_cast<std::size_t>(l)];
      if (one < 0 || one > most || (one > 0 && found > 0 && one != found)) wrong();
      found = std::max(found, one);
      has.push_back(one > 0);
    }
    if (found == 0) wrong();
    return found;
  }

  std::int64_t read_kv_heads(std::int64_t heads) {
    if (family_.global_head_dim > 0 && file_.is_array(prefix_ + "attention.head_count_kv"))
      return heads;  // read_heads_of_layers has them
    std::vector<bool> attention;
    const std::int64_t kv_heads = read_each("attention.head_count_kv", heads, heads, attention);
    if (std::ranges::find(attention, false) == attention.end()) return kv_heads;
    if (architecture_.parts.empty()) {
      file_.fail(prefix_ + "attention.head_count_kv",
                 fmt::format("a number above 0 for each layer of {}", architecture_.name));
    }
    for (const bool has : attention) recurrent_.push_back(!has);
    return kv_heads;
  }

  void write_layer_types(const char* recurrence) {
    Json types = Json::array();
    for (std::int64_t l = 0; l < blocks_.layers; ++l)
      types.push_back(is_recurrent(l) ? recurrence : "full_attention");
    config_["layer_types"] = types;
  }

  bool is_recurrent(std::int64_t layer) const {
    return !recurrent_.empty() && recurrent_[static_cast<std::size_t>(layer)];
  }

  /// Throws FileError if the value of a key is no multiple of so many parts.
  void check_multiple(const char* key, std::int64_t value, std::int64_t count,
                      std::string_view parts) const {
    if (value % count != 0)
      file_.fail(prefix_ + key, fmt::format("a multiple of the {} {}", count, parts));
  }

  /// The sizes of Mamba-2 layers, and which layers they are.
  void read_mamba() {
    const FamilyMamba& own = family_.mamba;
    const auto number = [&](const char* key, std::int64_t low, std::int64_t high) {
      return file_.integer(prefix_ + key, low, high);
    };
    const std::int64_t heads = number("ssm.time_step_rank", 1, most_mamba_heads);
    const std::int64_t groups = number("ssm.group_count", 1, most_mamba_heads);
    check_multiple("ssm.time_step_rank", heads, groups, "groups (ssm.group_count)");
    const std::int64_t width = number("ssm.inner_size", 1, heads * most_mamba_head_dim);
    check_multiple("ssm.inner_size", width, heads, "heads (ssm.time_step_rank)");
    config_[std::string(own.heads)] = heads;
    config_[std::string(own.head_dim)] = width / heads;
    config_[std::string(own.groups)] = groups;
    config_[std::string(own.state_dim)] = number("ssm.state_size", 1, most_mamba_state_dim);
    config_[std::string(own.kernel)] = number("ssm.conv_kernel", 2, most_mamba_kernel);
    std::int64_t first = 0;
    if (!family_.parts_apart) {
      write_layer_types("linear_attention");
      while (first + 1 < blocks_.layers && !is_recurrent(first)) ++first;
    } else {
      Json types = Json::array();
      for (std::int64_t l = 0; l < blocks_.layers; ++l) {
        const bool mlp = !mlps_.empty() && mlps_[static_cast<std::size_t>(l)];
        if (mlp && !is_recurrent(l)) {
          file_.fail(
              prefix_ + "feed_forward_length",
              fmt::format("0 for layer {}, which is attention (attention.head_count_kv)", l));
        }
        const char* const without_mixer = architecture_.experts ? "moe" : "mlp";
        types.push_back(mlp               ? without_mixer
                        : is_recurrent(l) ? "linear_attention"
                                          : "full_attention");
        if (types.back() != "linear_attention" && first == l) ++first;
      }
      config_["layers_block_type"] = types;
    }
    config_[std::string(own.bias)] = has_tensor(fmt::format("blk.{}.ssm_conv1d.bias", first));
  }

  void read_mlp() {
    const std::string key = prefix_ + "feed_forward_length";
    if (!architecture_.parts.empty()) {
      config_["intermediate_size"] = read_each("feed_forward_length", most_number, {}, mlps_);
      if (!family_.parts_apart) {
        if (std::ranges::find(mlps_, false) != mlps_.end()) file_.fail(key, "a number above 0");
        mlps_.clear();
      }
      if (family_.mixture.shared_is_mlp) {
        const char* beside = architecture_.experts ? shared_expert_key : "feed_forward_length";
        config_[std::string(family_.mlp_size_key)] = size(beside);
        if (!architecture_.experts) config_["num_local_experts"] = 0;
      }
      return;
    }
    if (family_.global_head_dim > 0) return;  // read_heads_of_layers has it
    // A mixture with an expert that all tokens share has it in each layer.
    if (family_.mixture.shared == 0 || file_.has(key)) {
      config_["intermediate_size"] = size("feed_forward_length");
    } else {
      config_["intermediate_size"] = size("expert_feed_forward_length");
    }
  }

  /// The sizes of Gated DeltaNet layers, and which layers they are.
  void read_recurrences() {
    const auto number = [&](const char* key, std::int64_t low, std::int64_t high) {
      return file_.integer(prefix_ + key, low, high);
    };
    const std::int64_t key_heads = number("ssm.group_count", 1, most_delta_heads);
    const std::int64_t value_heads = number("ssm.time_step_rank", 1, most_delta_heads);
    check_multiple("ssm.time_step_rank", value_heads, key_heads, "heads of keys (ssm.group_count)");
    const std::int64_t values = number("ssm.inner_size", 1, value_heads * most_delta_value_dim);
    check_multiple("ssm.inner_size", values, value_heads, "heads of values (ssm.time_step_rank)");
    config_["linear_num_key_heads"] = key_heads;
    config_["linear_num_value_heads"] = value_heads;
    config_["linear_key_head_dim"] = number("ssm.state_size", 1, most_delta_key_dim);
    config_["linear_value_head_dim"] = values / value_heads;
    config_["linear_conv_kernel_dim"] = number("ssm.conv_kernel", 2, most_delta_kernel);
    recurrent_ = recurrent_layers();
    Json types = Json::array();
    for (const bool is : recurrent_) types.push_back(is ? "linear_attention" : "full_attention");
    config_["layer_types"] = types;
  }

  std::vector<bool> recurrent_layers() const {
    const auto layers = static_cast<std::size_t>(blocks_.layers);
    const std::string key = prefix_ + recurrent_layers_key;
    if (!file_.has(key)) {
      const std::int64_t interval =
          file_.integer(prefix_ + "full_attention_interval", 1, most_number, 4);
      std::vector<bool> recurrent;
      for (std::int64_t l = 1; l <= blocks_.layers; ++l) recurrent.push_back(l % interval != 0);
      if (blocks_.layers < interval) {
        file_.fail(
            prefix_ + "full_attention_interval",
            fmt::format("1 to the number of layers ({}): one layer of full attention, or more",
                        blocks_.layers));
      }
      return recurrent;
    }
    std::vector<bool> recurrent = file_.flags(key);
    if (recurrent.size() != layers + static_cast<std::size_t>(blocks_.drafts)) {
      file_.fail(key, fmt::format("a flag for each of the {} blocks (block_count)",
                                  blocks_.layers + blocks_.drafts));
    }
    recurrent.resize(layers);
    if (std::ranges::find(recurrent, false) == recurrent.end())
      file_.fail(key, "one layer of full attention, or more");
    return recurrent;
  }

  /// The first that is not a recurrence.
  std::int64_t first_attention_layer() const {
    return std::ranges::find(recurrent_, false) - recurrent_.begin();
  }

  /// Sections divide pairs of RoPE among positions of time, height, width and one more. The first
  /// three are a text's one position (interleaved multimodal RoPE of Qwen3-VL).
  void check_sections() const {
    const std::string key = prefix_ + sections_key;
    if (!file_.has(key)) return;
    const auto wrong = [&] {
      file_.fail(key, fmt::format("three or four numbers from 0 on that give a position to each of "
                                  "the {} pairs that RoPE turns",
                                  rotary_dim_ / 2));
    };
    const std::vector<std::int64_t> sections = file_.integers(key);
    if (sections.size() < 3 || sections.size() > 4) wrong();
    std::int64_t sum = 0;
    for (const std::int64_t one : sections) {
      if (one < 0 || one > most_number) wrong();
      sum += one;
    }
    if (sum == 0) wrong();
    for (std::int64_t pair = 0; pair < rotary_dim_ / 2; ++pair) {
      const std::int64_t at = pair % sum;
      if (at >= 3 * sections[static_cast<std::size_t>(at % 3)]) wrong();
    }
  }

  /// Names of tensors that the network reads in a layer, as they stand behind "blk.N.".
  std::set<std::string> names_in_layer(bool recurrent) const {
    std::set<std::string> names;
    if (!architecture_.parts.empty()) return names_of_parts(recurrent, mlps_.empty());
    const auto add = [&](std::string_view name, bool has_bias) {
      for (const char* kind : matrix_kinds) names.insert(fmt::format("{}{}", name, kind));
      if (has_bias) names.insert(fmt::format("{}.bias", name));
    };
    const bool attention_bias = config_.value("attention_bias", false);
    const bool qkv_bias = family_.always_qkv_bias || attention_bias;
    const auto has = [&](std::string_view ours) {
      return !recurrent || !ours.starts_with("self_attn.");
    };
    for (const auto& [ours, name] : architecture_.norms) {
      if (has(ours)) names.insert(fmt::format("{}.weight", name));
    }
    if (recurrent) add_delta(names);
    for (const auto& [ours, name] : architecture_.scales) names.insert(std::string(name));
    const bool has_mlp = !architecture_.experts || family_.mixture.own_norms;
    if (is_latent(family_)) {
      for (const auto& [ours, name] : gguf_latent_projections()) add(name, false);
      for (const std::string_view name : {gguf_latent_keys, gguf_latent_values}) add(name, false);
      if (architecture_.sigmoid) names.insert(std::string(gguf_choice_bias));
    }
    for (const auto& [ours, name] : gguf_projections()) {
      if (!has(ours)) continue;
      if (is_latent(family_)) {  // q, if it has no latent; the MLPs of the first layers
        const bool is_read = ours == "self_attn.q_proj" || ours == "self_attn.o_proj";
        if (is_read || ours.starts_with("mlp.")) add(name, false);
        continue;
      }
      if (ours == "self_attn.o_proj") {
        add(name, attention_bias && !family_.never_o_bias);
      } else if (ours.starts_with("self_attn.")) {
        if (!family_.fused_qkv || name == gguf_qkv) add(name, qkv_bias);
      } else if (has_mlp && !(family_.fused_gate_up && ours == "mlp.gate_proj")) {
        add(name, config_.value("mlp_bias", false));
      }
    }
    if (family_.attention_sinks) names.insert(fmt::format("{}.weight", gguf_sinks));
    if (!architecture_.experts) return names;
    const bool expert_bias = family_.mixture.fused;
    add(gguf_router, expert_bias);
    add(gguf_gate_up_experts, expert_bias);
    for (const std::string_view name : gguf_experts()) add(name, expert_bias);
    if (family_.mixture.shared > 0) {
      for (const auto& [ours, name] : gguf_shared_expert()) add(name, false);
    }
    for (const auto& [ours, name] : gguf_projections()) {
      if (!ours.starts_with("mlp.")) continue;
      for (std::int64_t e = 0; e < experts_; ++e) add(gguf_expert(name, e), false);
    }
    return names;
  }

  /// Of architectures that have names of their own.
  std::set<std::string> names_of_parts(bool recurrent, bool has_mlp) const {
    std::set<std::string> names;
    const bool apart = family_.parts_apart;
    const bool attention = !recurrent && !(apart && has_mlp);
    const auto add = [&](std::string_view name) {
      const bool of_attention = name.starts_with("attn_") && !name.starts_with("attn_norm");
      const bool of_recurrence = name.starts_with("ssm_") || name.starts_with("shortconv.");
      const bool of_mlp = name.starts_with("ffn_") || name == gguf_choice_bias;
      if (of_attention && !attention) return;
      if (of_recurrence && (!recurrent || (apart && has_mlp))) return;
      if (of_mlp && apart && !has_mlp) return;
      names.emplace(name);
      if (!name.ends_with(".weight")) return;
      for (const char* kind : matrix_kinds)
        names.insert(fmt::format("{}{}", name.substr(0, name.rfind('.')), kind));
    };
    const auto add_biased = [&](std::string_view name, bool has_bias) {
      add(fmt::format("{}.weight", name));
      if (has_bias) add(fmt::format("{}.bias", name));
    };
    for (const auto& [ours, name] : architecture_.norms) add(fmt::format("{}.weight", name));
    // MLPs beside layers with experts are in the first layers, or in none.
    const FamilyMixture& mixture = family_.mixture;
    const bool shared = architecture_.experts && mixture.shared > 0;
    const bool mlps = !architecture_.experts || mixture.first_dense >= 0;
    for (const auto& [ours, name] : architecture_.parts) {
      if (!name.starts_with("ffn_")) add(name);
    }
    const bool qkv_bias = config_.value("attention_bias", false);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
      add_biased(name, qkv_bias);
    const bool mlp_bias = config_.value("mlp_bias", false);
    const auto is_gate = [](std::string_view name) { return name.starts_with("ffn_gate"); };
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
      if (is_gate(name) && family_.relu_squared) continue;
      if (mlps) add_biased(name, mlp_bias);
      if (shared) add_biased(fmt::format("{}_shexp", name), mlp_bias);
    }
    if (!architecture_.experts) return names;
    add_biased(gguf_router, false);
    if (architecture_.sigmoid) add(gguf_choice_bias);
    if (!family_.relu_squared) add_biased(gguf_gate_up_experts, false);
    for (const std::string_view name : gguf_experts())
      if (!is_gate(name) || !family_.relu_squared) add_biased(name, false);
    return names;
  }

  void add_delta(std::set<std::string>& names) const {
    for (const auto& [ours, name] : gguf_delta()) {
      const bool fused = ours.ends_with("_qkvz.weight") || ours.ends_with("_ba.weight");
      const bool apart = ours.ends_with("_b.weight") || ours.ends_with("_a.weight");
      if (family_.fused_delta ? apart : fused) continue;
      names.emplace(name);
      if (!ours.ends_with("_proj.weight") && ours.find(".in_proj_") == ours.npos) continue;
      const std::string_view matrix = name.substr(0, name.rfind('.'));
      for (const char* kind : matrix_kinds) names.insert(fmt::format("{}{}", matrix, kind));
    }
  }

  /// What the network would not read belongs to another one: a bias, a norm, more layers.
  void refuse_other_tensors() const {
    std::set<std::string_view> whole = {"token_embd.weight", "output.weight", "output.scale",
                                        "output.input_scale"};
    whole.insert(has_convolutions(family_) ? "token_embd_norm.weight" : "output_norm.weight");
    if (family_.longrope_only) {
      whole.insert({long_factors, short_factors});
    } else if (!has_sliding_rope(family_) || family_.proportional_rope) {
      whole.insert(rope_factors);
    }
    if (family_.layer_input_size > 0) {
      whole.insert({"per_layer_token_embd.weight", "per_layer_model_proj.weight",
                    "per_layer_proj_norm.weight"});
    }
    const std::set<std::string> in_attention = names_in_layer(false);
    const std::set<std::string> in_recurrence =
        recurrent_.empty() ? std::set<std::string>() : names_in_layer(true);
    const std::set<std::string> in_mlp =
        mlps_.empty() ? std::set<std::string>() : names_of_parts(true, true);
    const auto is_read = [&](std::string_view name) {
      if (!name.starts_with("blk.")) return whole.contains(name);
      const auto block = block_of(name);
      if (!block || *block >= blocks_.layers) return false;
      const bool mlp = !mlps_.empty() && mlps_[static_cast<std::size_t>(*block)];
      const std::string in_layer(name.substr(name.find('.', 4) + 1));
      return (mlp                    ? in_mlp
              : is_recurrent(*block) ? in_recurrence
                                     : in_attention)
                 .contains(in_layer) &&
             fits_layer(*block, in_layer);
    };
    for (const auto& [name, tensor] : file_.tensors()) {
      if (is_draft(name)) continue;
      if (is_read(name)) {
        refuse_same_weights(name);
        continue;
      }
      throw Unsupported(fmt::format(
          "{}: has tensor {}, which topkv does not read in a network of architecture {} with {} "
          "layers; expected a model without it",
          path_text(file_.path()), printable_beginning(name), architecture_.name, blocks_.layers));
    }
  }

  /// Whether a layer reads a tensor, where the first layers have MLPs and the others experts.
  bool fits_layer(std::int64_t layer, std::string_view name) const {
    if (!dense_layers_) return true;
    const bool of_experts = name == gguf_choice_bias || name.starts_with(gguf_router) ||
                            name.find("_exps.") != name.npos || name.find("_shexp.") != name.npos;
    const bool of_mlp = !of_experts && std::ranges::any_of(matrix_kinds, [&](const char* kind) {
      return std::ranges::any_of(
          std::array{"ffn_gate", "ffn_up", "ffn_down"},
          [&](const char* part) { return name == fmt::format("{}{}", part, kind); });
    });
    return layer < *dense_layers_ ? !of_experts : !of_mlp;
  }

  /// Whether a tensor belongs to a block that drafts tokens.
  bool is_draft(std::string_view name) const {
    const auto block = block_of(name);
    return block && *block >= blocks_.layers && *block < blocks_.layers + blocks_.drafts;
  }

  /// Weights that are there in two layouts, of which one would not be read.
  void refuse_same_weights(std::string_view name) const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> layouts = {
        {{".attn_qkv.", ".attn_q."},
         {".attn_qkv.", ".ssm_in."},
         {".attn_gate.", ".ssm_in."},
         {".ffn_gate_up_exps.", ".ffn_gate_exps."},
         {".ffn_gate_up_exps.", ".ffn_gate.0."},
         {".ffn_gate_exps.", ".ffn_gate.0."}}};
    for (const auto& [one, other] : layouts) {
      const std::size_t at = name.find(one);
      if (at == name.npos) continue;
      std::string again(name);
      again.replace(at, one.size(), other);
      if (!has_tensor(again)) continue;
      throw FileError(fmt::format(
          "{}: has tensors {} and {}, which hold the same weights; expected one of them",
          path_text(file_.path()), name, again));
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
    const bool has_longrope = family_.longrope_only && has_tensor(long_factors);
    if (!has_longrope) only_one("scaling.attn_factor", 1);
    only_one("scaling.yarn_attn_factor", 1);
    only_one("scaling.yarn_ext_factor", 1);
    if (!family_.query_growth && !is_latent(family_)) only_one("scaling.yarn_log_multiplier", 0);
    if (family_.partial_rotary) read_rotary_part();
    if (is_hybrid(family_)) check_sections();
    if (family_.longrope_only) {
      if (type != "none" && type != "longrope") {
        file_.unsupported(type_key, fmt::format("\"longrope\" in {}", architecture_.name));
      }
      config_["original_max_position_embeddings"] = file_.integer(
          at + "scaling.original_context_length", 1, most_number, family_.original_max_position);
      if (has_longrope) {
        rope["rope_type"] = "longrope";
        rope["long_factor"] = pair_factors(file_, long_factors, rotary_dim_ / 2);
        rope["short_factor"] = pair_factors(file_, short_factors, rotary_dim_ / 2);
        if (const std::string key = at + "scaling.attn_factor"; file_.has(key))
          rope["attention_factor"] = file_.number(key, 1 / most_factor, most_factor);
      } else if (has_tensor(short_factors)) {
        pair_factors(file_, long_factors, rotary_dim_ / 2);  // to be missed
      }
    } else if (has_sliding_rope(family_)) {
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
      if (type == "yarn") {
        read_yarn(at + "scaling.", rope);
        if (!architecture_.yarn_truncates) rope["truncate"] = false;
      }
    } else if (type != "none") {
      file_.unsupported(type_key, "\"none\", \"linear\" and \"yarn\"");
    }
    if (family_.reads_position_type) {
      const bool turns = file_.flag(at + "scaling.finetuned", true);
      config_["position_embedding_type"] = turns ? "rope" : "nope";
    }
    if (family_.query_growth) read_query_growth(at + "scaling.original_context_length", rope);
    if (!family_.never_rope) config_["rope_parameters"] = rope;
  }

  void read_query_growth(const std::string& length_key, Json& rope) const {
    rope["llama_4_scaling_beta"] = file_.number(prefix_ + growth_key, 0, most_factor, 0);
    if (rope["llama_4_scaling_beta"] != 0) {
      rope["original_max_position_embeddings"] = file_.integer(length_key, 1, most_number);
    }
  }

  /// Elements of a head that are turned.
  void read_rotary_part() {
    const std::string key = prefix_ + "rope.dimension_count";
    const auto missing =
        static_cast<std::int64_t>(static_cast<double>(head_dim_) * family_.partial_rotary_factor);
    rotary_dim_ = file_.integer(key, 2, head_dim_, missing);
    if (rotary_dim_ % 2 != 0) file_.fail(key, "an even number, because RoPE rotates pairs");
    // A part that gives the number again, whichever way it is rounded.
    const double part = rotary_dim_ == head_dim_ ? 1
                                                 : (static_cast<double>(rotary_dim_) + 0.25) /
                                                       static_cast<double>(head_dim_);
    config_["partial_rotary_factor"] = part;
  }

  void read_yarn(const std::string& at, Json& rope) const {
    const auto take = [&](const char* key, const char* name) {
      if (file_.has(at + key)) rope[name] = file_.number(at + key, 0, most_factor);
    };
    take("yarn_beta_fast", "beta_fast");
    take("yarn_beta_slow", "beta_slow");
    if (family_.query_growth &&
        file_.has(at + "yarn_log_multiplier")) {  // other files never have it
      rope["mscale"] = 1;
      take("yarn_log_multiplier", "mscale_all_dim");
    }
    if (const std::string key = at + "yarn_log_multiplier"; is_latent(family_) && file_.has(key)) {
      // llama.cpp's converter writes a tenth of it, and takes mscale to be the same.
      rope["mscale"] = rope["mscale_all_dim"] = 10 * file_.number(key, 0, most_factor);
    }
    const std::string original = at + "original_context_length";
    if (file_.has(original)) {
      rope["original_max_position_embeddings"] = file_.integer(original, 1, most_number);
    }
  }

  /// One number for each layer: a list, or one for all.
  std::vector<std::int64_t> of_layers(const char* name, std::int64_t low) const {
    const std::string key = prefix_ + name;
    const auto layers = config_["num_hidden_layers"].get<std::size_t>();
    if (!file_.is_array(key)) return std::vector(layers, file_.integer(key, low, most_number));
    std::vector<std::int64_t> numbers = file_.integers(key);
    const auto is_wrong = [&](std::int64_t x) { return x < low || x > most_number; };
    if (numbers.size() != layers || std::ranges::any_of(numbers, is_wrong))
      file_.fail(key, fmt::format("a number of {} or more for each of the {} layers", low, layers));
    return numbers;
  }

  /// Heads of layers with a window and of others, layers that share rows, and inputs for each
  /// layer.
  void read_heads_of_layers() {
    const auto layers = config_["num_hidden_layers"].get<std::int64_t>();
    const std::int64_t sliding_dim =
        file_.integer(prefix_ + "attention.key_length_swa", 2, most_number);
    for (const char* name : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
      if (file_.integer(prefix_ + name, 1, most_number, sliding_dim) != sliding_dim) {
        file_.unsupported(prefix_ + name,
                          fmt::format("heads of one length, turned whole ({})", sliding_dim));
      }
    }
    if (!config_.contains("layer_types"))
      file_.fail(prefix_ + std::string(window_keys[1]), "a flag for each layer");
    if (!has_tensor(rope_factors)) {
      throw FileError(fmt::format(
          "{}: has no tensor {}, which says what part of a head is turned in layers without a "
          "window; convert the model again",
          path_text(file_.path()), rope_factors));
    }
    const std::vector<std::int64_t> kv_heads = of_layers("attention.head_count_kv", 1);
    const std::int64_t shared =
        file_.integer(prefix_ + "attention.shared_kv_layers", 0, layers - 1, 0);
    config_["num_kv_shared_layers"] = shared;
    config_["head_dim"] = sliding_dim;
    Json own = Json::object();
    bool has_values = true;
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::int64_t heads = kv_heads[static_cast<std::size_t>(l)];
      if (config_["layer_types"][static_cast<std::size_t>(l)] == "sliding_attention") {
        config_["num_key_value_heads"] = heads;
        continue;
      }
      own[fmt::to_string(l)] = {{"head_dim", head_dim_}, {"num_key_value_heads", heads}};
      if (l < layers - shared) has_values = has_tensor(fmt::format("blk.{}.attn_v.weight", l));
    }
    for (std::int64_t l = 0; l < layers; ++l) {  // as the last of them, so that one is missed
      if (config_["layer_types"][static_cast<std::size_t>(l)] == "sliding_attention" &&
          kv_heads[static_cast<std::size_t>(l)] != config_["num_key_value_heads"])
        file_.unsupported(prefix_ + "attention.head_count_kv",
                          "layers with a window that are alike, and other layers that are alike");
    }
    config_["per_layer_config"] = own;
    config_["attention_k_eq_v"] = !has_values;

    const std::vector<std::int64_t> widths = of_layers("feed_forward_length", 1);
    config_["intermediate_size"] = widths.front();
    config_["use_double_wide_mlp"] = widths.back() != widths.front();
    for (std::int64_t l = 0; l < layers; ++l) {
      const bool doubled = widths.back() != widths.front() && l >= layers - shared;
      if (widths[static_cast<std::size_t>(l)] != widths.front() * (doubled ? 2 : 1)) {
        file_.unsupported(prefix_ + "feed_forward_length",
                          "MLPs of one width, or twice as wide in layers that share rows");
      }
    }
    const std::int64_t inputs =
        file_.integer(prefix_ + "embedding_length_per_layer_input", 0, most_number, 0);
    config_["hidden_size_per_layer_input"] = inputs;
    config_["vocab_size_per_layer_input"] = config_["vocab_size"];
  }

  /// Which layers have the window is the architecture's, where the file does not say.
  void read_windows() {
    const std::string window = prefix_ + std::string(window_keys[0]);
    if (family_.sliding == Family::Sliding::all_layers) {
      const std::int64_t length = file_.integer(window, 0, most_number, 0);
      config_["sliding_window"] = length > 0 ? Json(length) : Json(nullptr);
      return;
    }
    const auto missing = architecture_.window > 0 ? std::optional(architecture_.window)
                                                  : std::optional<std::int64_t>();
    config_["sliding_window"] = file_.integer(window, 1, most_number, missing);
    const std::string key = prefix_ + std::string(window_keys[1]);
    if (!file_.has(key)) return;
    const auto layers = config_["num_hidden_layers"].get<std::int64_t>();
    std::vector<bool> windowed;
    if (file_.is_array(key)) {
      windowed = file_.flags(key);
      if (std::ssize(windowed) != layers) {
        file_.fail(key, fmt::format("a flag for each of the {} layers (block_count)", layers));
      }
    } else {
      const std::int64_t pattern = file_.integer(key, 1, most_number);
      for (std::int64_t l = 0; l < layers; ++l) windowed.push_back((l + 1) % pattern != 0);
    }
    Json types = Json::array();
    for (const bool has : windowed) types.push_back(has ? "sliding_attention" : "full_attention");
    config_["layer_types"] = types;
  }

  /// Experts that are chosen by sigmoids, or in groups.
  void read_chosen_experts() {
    const FamilyMixture& own = family_.mixture;
    const std::int64_t experts = file_.integer(prefix_ + "expert_count", 1, most_experts);
    config_[own.reads_groups ? "n_routed_experts" : "num_experts"] = experts;
    experts_ = experts;
    config_["num_experts_per_tok"] = file_.integer(prefix_ + "expert_used_count", 1, experts);
    config_["moe_intermediate_size"] = size("expert_feed_forward_length");
    if (own.shared > 0) config_[std::string(own.shared_size_key)] = size(shared_expert_key);
    if (own.first_dense >= 0) {
      dense_layers_ = file_.integer(prefix_ + dense_layers_key, 0, most_number, 0);
      config_[std::string(own.first_dense_key)] = *dense_layers_;
    }
    const double scale = file_.number(prefix_ + "expert_weights_scale", 0, most_factor, 1);
    config_["routed_scaling_factor"] = scale == 0 ? 1 : scale;  // llama.cpp takes 0 for none
    // llama.cpp normalises weights where its converter does not say so.
    config_["norm_topk_prob"] = file_.flag(prefix_ + "expert_weights_norm", !own.reads_groups);
    if (!own.choice_bias_key.empty()) config_[std::string(own.choice_bias_key)] = has_choice_bias();
    constexpr std::int64_t softmax = 1, sigmoids = 2;
    const std::string gating = prefix_ + "expert_gating_func";
    const std::int64_t function = file_.integer(gating, 0, INT32_MAX, 0);
    if (function != 0 && function != softmax && function != sigmoids)
      file_.unsupported(gating, "routers with a softmax (1) or sigmoids (2)");
    if (own.sigmoid && function == softmax)
      file_.unsupported(gating, fmt::format("sigmoids (2) in {}", architecture_.name));
    if (own.reads_groups) read_groups(experts);
  }

  void read_groups(std::int64_t experts) {
    const auto missing =
        is_latent(family_) ? std::optional<std::int64_t>() : std::optional(std::int64_t{1});
    config_["n_shared_experts"] =
        file_.integer(prefix_ + "expert_shared_count", 0, most_experts, missing);
    const auto groups = [&](const char* key) {
      return std::max<std::int64_t>(1, file_.integer(prefix_ + key, 0, experts, 1));
    };
    config_["n_group"] = groups("expert_group_count");
    config_["topk_group"] = groups("expert_group_used_count");
    if (!architecture_.sigmoid)
      config_["topk_method"] = config_["n_group"] == 1 ? "greedy" : "group_limited_greedy";
  }

  bool has_choice_bias() const {
    return std::ranges::any_of(file_.tensors(), [](const auto& tensor) {
      return std::string_view(tensor.first).ends_with(gguf_choice_bias);
    });
  }

  void read_experts() {
    const std::int64_t experts = file_.integer(prefix_ + "expert_count", 1, most_experts);
    if (!family_.mixture.switch_key.empty())
      config_[std::string(family_.mixture.switch_key)] = true;
    const auto& own = family_.own_keys;
    const bool local = std::ranges::find(own, "num_local_experts") != own.end();
    config_[local ? "num_local_experts" : "num_experts"] = experts;
    experts_ = experts;
    config_[std::string(family_.mixture.per_token_key)] =
        file_.integer(prefix_ + "expert_used_count", 1, experts);
    const std::string length = prefix_ + "expert_feed_forward_length";
    const bool has_own_key = family_.mixture.intermediate_size > 0;
    if (has_own_key || file_.has(length)) {
      // Beside an MLP experts have the one length that there is, if there is no other.
      const auto missing = family_.mixture.own_norms || family_.mixture.shared_is_mlp
                               ? std::optional(config_["intermediate_size"].get<std::int64_t>())
                               : std::optional<std::int64_t>();
      const std::string_view key =
          has_own_key ? family_.mixture.intermediate_size_key : "intermediate_size";
      config_[std::string(key)] = file_.integer(length, 1, most_number, missing);
    }
    if (family_.mixture.shared > 0) {
      config_[std::string(family_.mixture.shared_size_key)] =
          file_.integer(prefix_ + shared_expert_key, 1, most_number,
                        config_["intermediate_size"].get<std::int64_t>());
    }
    const std::string scale = prefix_ + "expert_weights_scale";
    const double factor = file_.number(scale, 0, most_factor, 1);
    if (factor != 0 && factor != 1) {  // llama.cpp takes 0 for none
      file_.unsupported(scale, "experts whose weights are as the router gives them (1)");
    }
    // As llama.cpp numbers them. Normalised, a softmax over all experts is one over the chosen.
    constexpr std::int64_t softmax = 1, softmax_over_chosen = 3;
    const std::string gating = prefix_ + "expert_gating_func";
    const std::int64_t function = file_.integer(gating, 0, INT32_MAX, softmax);
    if (function != softmax && function != softmax_over_chosen) {
      file_.unsupported(gating, "routers with a softmax over all experts (1) or the chosen (3)");
    }
    if (family_.mixture.reads_softmax) {
      config_["norm_topk_prob"] =
          function == softmax_over_chosen || file_.flag(prefix_ + "expert_weights_norm", true);
    }
  }

  void read_scales() {
    if (family_.reads_query_scale) {
      const bool by_width = config_["num_hidden_layers"] == architecture_.layers_scaled_by_width;
      config_["query_pre_attn_scalar"] =
          by_width ? config_["hidden_size"].get<std::int64_t>() /
                         config_["num_attention_heads"].get<std::int64_t>()
                   : head_dim_;
    }
    if (family_.reads_multipliers) read_multipliers();
    read_cap(score_cap_key, family_.attention_softcap.has_value());
    read_cap(final_cap_key, family_.final_softcap.has_value());
  }

  /// 0 is none, as in llama.cpp.
  void read_multipliers() {
    const auto take = [&](std::string_view key, const char* name, double none) {
      const double factor = file_.number(fmt::format("{}{}", prefix_, key), 0, most_factor, 0);
      config_[name] = factor == 0 ? none : factor;
    };
    take(multiplier_keys[0], "attention_multiplier", 1 / std::sqrt(static_cast<double>(head_dim_)));
    take(multiplier_keys[1], "embedding_multiplier", 1);
    take(multiplier_keys[2], "residual_multiplier", 1);
    take(multiplier_keys[3], "logits_scaling", 1);
  }

  /// A missing one is the family's; 0: none.
  void read_cap(const char* name, bool is_read) {
    const std::string key = prefix_ + name;
    if (!is_read || !file_.has(key)) return;
    const double cap = file_.number(key, 0, most_factor);
    config_[name] = cap > 0 ? Json(cap) : Json(nullptr);
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
  std::int64_t rotary_dim_ = 0;  // of families that turn a part of a head
  std::int64_t experts_ = 0;
  std::optional<std::int64_t> dense_layers_;  // before the first that has experts
  GgufBlocks blocks_;
  std::vector<bool> recurrent_;  // of each layer; empty: none is
  std::vector<bool> mlps_;       // of each layer, where a layer is one part; empty: all have one
  Json config_ = Json::object();
};

}  // namespace

Json config_of_gguf(const GgufFile& file) { return Translator(file).read(); }

std::vector<double> rope_factors_of_gguf(const GgufFile& file, std::int64_t pairs) {
  if (file.tensors().find(std::string_view(rope_factors)) == file.tensors().end()) return {};
  return pair_factors(file, rope_factors, pairs);
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
  if (!architecture.model_type.starts_with("qwen") || is_hybrid(architecture.family())) return {};
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
