#include "src/model/families/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Keys = std::span<const std::string_view>;

bool contains(Keys keys, std::string_view key) {
  return !key.empty() && std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Read for every family; Family::own_keys are read for one.
constexpr std::string_view read_keys[] = {"model_type",
                                          "vocab_size",
                                          "hidden_size",
                                          "intermediate_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "hidden_act",
                                          "max_position_embeddings",
                                          "rms_norm_eps",
                                          "tie_word_embeddings",
                                          "rope_theta",
                                          "dual_chunk_attention_config",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "partial_rotary_factor",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "original_max_position_embeddings",
                                          "quantization_config"};

// Whatever their value, they change no logit of these families: training, other tasks, how to run
// or to generate, notes of those who wrote the file. Keys that begin with _ are such notes too.
constexpr std::string_view harmless_keys[] = {
    // the file and the weights
    "transformers_version", "dtype", "torch_dtype", "use_bfloat16", "torchscript", "name_or_path",
    "tokenizer_class", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    "is_llama_config", "initializer_range", "initializer_factor", "pretraining_tp",
    "cache_implementation", "tf_legacy_loss",
    // training
    "attention_dropout", "attn_dropout", "attn_pdrop", "attention_probs_dropout_prob",
    "hidden_dropout", "hidden_dropout_prob", "resid_dropout", "resid_pdrop", "residual_dropout",
    "embd_pdrop", "embed_dropout", "classifier_dropout", "classifier_dropout_prob",
    "gradient_checkpointing", "use_gradient_checkpointing", "neftune_noise_alpha",
    "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "max_sequence_length",
    "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length",
    // other tasks
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "prefix", "is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
    // how to run
    "use_cache", "attn_implementation", "use_flash_attention_2", "use_flash_attn",
    "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "output_scores",
    "return_dict", "return_dict_in_generate", "remove_invalid_values",
    // how to generate, which topkv is told by its caller
    "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id", "do_sample",
    "temperature", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "max_length",
    "max_new_tokens", "min_length", "num_beams", "num_beam_groups", "num_return_sequences",
    "early_stopping", "length_penalty", "diversity_penalty", "repetition_penalty",
    "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind",
    "target_lookbehind",
    // of windows; without one they mean nothing
    "max_window_layers"};

// Keys with which other software computes another network from the same weights. transformers
// leaves them aside where the family does not have them; running on would be a guess.
struct OtherNetwork {
  std::string_view key;
  std::string_view topkv_runs;
  std::optional<double> without = {};  ///< the number that means: nothing of the kind
};
constexpr std::string_view full_precision = "F32, F16 and BF16 weights";
constexpr std::string_view dense =
    "dense models, and experts like those in qwen3_moe, mixtral and gpt_oss";
constexpr std::string_view no_shared_experts = "mixtures without an expert that all tokens share";
constexpr std::string_view plain_rope = "RoPE as this family of models has it";
constexpr std::string_view unscaled = "networks that scale only attention, by 1/sqrt(d)";
constexpr std::string_view uncapped = "scores and logits without a cap";
constexpr std::string_view all_or_sliding = "layers that attend all positions or a sliding window";
constexpr OtherNetwork other_networks[] = {
    {"compression_config", full_precision},
    {"quantization", full_precision},
    {"num_experts", dense},
    {"num_local_experts", dense},
    {"n_routed_experts", dense},
    {"moe_num_experts", dense},
    {"n_shared_experts", no_shared_experts},
    {"num_shared_experts", no_shared_experts},
    {"shared_expert_intermediate_size", no_shared_experts},
    {"routed_scaling_factor", "experts whose weights are as the router gives them", 1},
    {"per_layer_config", "models whose layers are alike"},
    {"pruned_heads", "models whose layers are alike"},
    {"rope_interleaved", plain_rope},
    {"use_mrope", plain_rope},
    {"rotary_pct", plain_rope, 1},
    {"rope_pct", plain_rope, 1},
    {"alibi", plain_rope},
    {"use_alibi", plain_rope},
    {"use_dynamic_ntk", plain_rope},
    {"use_logn_attn", unscaled},
    {"logit_scale", unscaled, 1},
    {"logits_scaling", unscaled, 1},
    {"embedding_multiplier", unscaled, 1},
    {"residual_multiplier", unscaled, 1},
    {"attention_multiplier", unscaled},
    {"query_pre_attn_scalar", unscaled},
    {"final_logit_softcapping", uncapped},
    {"attn_logit_softcapping", uncapped},
    {"clip_qkv", uncapped},
    {"attention_chunk_size", all_or_sliding},
    {"no_rope_layers", all_or_sliding},
    {"no_rope_layer_interval", all_or_sliding},
    {"full_attn_mod", all_or_sliding, 1},
    {"interpolate_factor", unscaled, 1},
    {"lm_head_bias", "output layers without biases"},
    {"use_bidirectional_attention", "attention to a token itself and to earlier ones"},
    {"use_parallel_residual", "attention and MLP one after the other"},
    {"parallel_attn", "attention and MLP one after the other"},
    {"is_encoder_decoder", "decoders"},
    {"add_cross_attention", "decoders"}};

/// ["LlamaForCausalLM"], or the network without its output layer.
bool is_own_architecture(const Json& value, const Family& family) {
  const std::string_view class_name = family.class_name.empty() ? family.name : family.class_name;
  return value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& item) {
           if (!item.is_string()) return false;
           std::string name = item.get<std::string>();  // old files have "LLaMAForCausalLM"
           std::transform(name.begin(), name.end(), name.begin(), [](char c) {
             return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
           });
           std::erase(name, '_');
           std::string own(class_name);
           std::erase(own, '_');
           if (!name.starts_with(own)) return false;
           name.erase(0, own.size());
           if (name.starts_with("text")) name.erase(0, 4);
           return name == "forcausallm" || name == "model";
         });
}

bool is_read(std::string_view key, const Family& family) {
  return contains(read_keys, key) || contains(family.own_keys, key);
}

bool is_harmless(const Json& config, std::string_view key, const Json& value,
                 const Family& family) {
  if (key.starts_with('_') || contains(harmless_keys, key)) return true;
  if (key == "architectures") return is_own_architecture(value, family);
  if (key == "sliding_window") {  // switched off
    const auto use = config.find("use_sliding_window");
    return use != config.end() && *use == false;
  }
  if (key == "layer_types") {
    return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& type) {
             return type == "full_attention";
           });
  }
  return false;
}

struct ScalingKeys {
  std::string_view type;
  std::array<std::string_view, 8> keys;
};
constexpr std::string_view original_length = "original_max_position_embeddings";
constexpr ScalingKeys scaling_keys[] = {
    {"linear", {"factor", original_length}},
    {"dynamic", {"factor"}},
    {"proportional", {"factor"}},
    {"llama3", {"factor", original_length, "low_freq_factor", "high_freq_factor"}},
    {"yarn",
     {"factor", original_length, "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
      "beta_slow", "truncate"}},
    {"longrope", {"factor", original_length, "attention_factor", "short_factor", "long_factor"}}};

/// Of one object that RoPE is read from; name: the keys that lead to it.
void add_unread_of_rope(const std::string& name, const Json& rope, const Family& family,
                        std::vector<std::string>& unread) {
  const std::string type_key = rope.contains("rope_type") ? "rope_type" : "type";
  const std::string said = rope.value(type_key, Json("default")).dump();
  const std::string type = family.longrope_only && said != R"("default")" ? R"("longrope")" : said;
  const auto is_read_rope_key = [&](std::string_view key, const Json& value) {
    if (key == type_key || key == "rope_theta" || key == "partial_rotary_factor") return true;
    if (key == "type") return value == rope["rope_type"];
    // Sections of positions for pictures: a text has one position in all.
    if (key == "mrope_section" || key == "mrope_interleaved") return family.delta.key_heads > 0;
    if (family.query_growth && (key == "llama_4_scaling_beta" || key == original_length))
      return true;
    if (family.query_growth && key == "max_position_embeddings") return true;  // said twice
    const auto* keys = std::find_if(std::begin(scaling_keys), std::end(scaling_keys),
                                    [&](const ScalingKeys& k) { return shown(k.type) == type; });
    return keys != std::end(scaling_keys) && contains(keys->keys, key);
  };
  for (const auto& [key, value] : rope.items()) {
    if (says_nothing(value) || is_read_rope_key(key, value)) continue;
    unread.push_back(fmt::format("{}.{}", name, key_and_value(key, value)));
  }
}

/// Of the object that RoPE is read from, and of the one that it is not read from. Families whose
/// layers differ in theta read both.
void add_unread_rope_keys(const Json& config, const Family& family,
                          std::vector<std::string>& unread) {
  const bool by_kind = family.sliding_rope_theta > 0;
  bool read = false;
  for (const std::string name : {"rope_scaling", "rope_parameters"}) {  // the first is read
    const auto found = config.find(name);
    if (found == config.end() || !found->is_object() || found->empty()) continue;
    if (by_kind && name == "rope_parameters") {
      for (const auto& [kind, rope] : found->items()) {
        if (rope.is_object()) add_unread_of_rope(name + "." + kind, rope, family, unread);
      }
    } else if (!read) {
      add_unread_of_rope(name, *found, family, unread);
    } else if (*found != config["rope_scaling"]) {
      unread.push_back(key_and_value(name, *found));
    }
    read = true;
  }
}

}  // namespace

bool says_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();  // null, [], {}
}

std::string key_and_value(std::string_view key, const Json& value) {
  const std::string quoted = shown(std::string(key));
  const bool plain = !key.empty() && quoted == fmt::format("\"{}\"", key);
  return fmt::format("{} is {}", plain ? key : std::string_view(quoted), shown(value));
}

std::vector<std::string> unread_keys(const Json& config, const std::filesystem::path& file,
                                     const Family& family) {
  const JsonObject root(config, file);
  for (const OtherNetwork& other : other_networks) {
    const Json* value = root.find(other.key);
    if (value == nullptr || says_nothing(*value) || is_read(other.key, family)) continue;
    if (other.without && value->is_number() && value->get<double>() == *other.without) continue;
    root.unsupported(other.key, other.topkv_runs);
  }
  std::vector<std::string> unread;
  for (const auto& [key, value] : config.items()) {
    const bool refused_else =
        std::any_of(std::begin(other_networks), std::end(other_networks),
                    [&, &key = key](const OtherNetwork& other) { return other.key == key; });
    if (says_nothing(value) || refused_else || is_read(key, family)) continue;
    if (!is_harmless(config, key, value, family)) unread.push_back(key_and_value(key, value));
  }
  add_unread_rope_keys(config, family, unread);
  return unread;
}

std::string unread_keys_warning(const std::vector<std::string>& keys,
                                const std::filesystem::path& file, std::string_view model_type) {
  if (keys.empty()) return {};
  return fmt::format(
      "{}: {}: neither topkv nor transformers' {} reads it; a model that needs it will not answer "
      "as its makers intended",
      path_text(file), listed(keys, 6), model_type);
}

}  // namespace topkv
