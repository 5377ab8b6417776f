// Reads config.json the way transformers 5 does: the same keys, the same value for a key that is
// missing, per family. What would change the forward pass in a way that is not implemented is
// refused; keys that the family's network does not read are left aside, as they are there, and told
// unless they are harmless (config_keys.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/format/gguf_file.h"
#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/model/config/config_parts.h"
#include "src/model/config/gguf_config.h"
#include "src/model/families/config_keys.h"
#include "src/model/families/gguf_architecture.h"
#include "src/model/weights/quantisation.h"
#include "src/model/weights/quantisation_keys.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// Bounds far above any model there is and far below any overflow of their products.
constexpr std::int64_t max_layers = 1000;
constexpr std::int64_t max_heads = 4096;
constexpr std::int64_t max_head_dim = 4096;
constexpr std::int64_t max_vocab = std::int64_t{1} << 24;
constexpr double tiny = std::numeric_limits<double>::min();

const Family& read_family(const JsonObject& root) {
  const Family* family = find_family(root.text("model_type"));
  if (family != nullptr) return *family;
  std::vector<std::string_view> names;
  for (const Family& known : families()) names.push_back(known.name);
  const std::string_view last = names.back();
  names.pop_back();
  root.unsupported("model_type", fmt::format("{} and {}", fmt::join(names, ", "), last));
}

std::int64_t read_kv_heads(const JsonObject& root, const Family& family, std::int64_t q_heads) {
  constexpr const char* key = "num_key_value_heads";
  std::int64_t kv_heads = family.kv_heads;
  if (root.contains(key)) {
    kv_heads = root.find(key) == nullptr ? 0 : root.integer(key, 1, max_heads);
  }
  if (kv_heads == 0) kv_heads = q_heads;
  if (q_heads % kv_heads != 0) {
    root.fail(key,
              fmt::format("a divisor of num_attention_heads ({}); missing means {} in {}", q_heads,
                          family.kv_heads == 0 ? q_heads : family.kv_heads, family.name));
  }
  return kv_heads;
}

std::int64_t read_head_dim(const JsonObject& root, const Family& family, std::int64_t hidden_size,
                           std::int64_t q_heads) {
  if (root.find("head_dim") == nullptr && family.head_dim == 0) {
    if (hidden_size % (2 * q_heads) != 0) {
      root.fail(
          "hidden_size",
          fmt::format("an even multiple of num_attention_heads ({}), because there is no head_dim",
                      q_heads));
    }
    return hidden_size / q_heads;
  }
  const std::int64_t head_dim = root.integer("head_dim", 2, max_head_dim, family.head_dim);
  if (head_dim % 2 != 0) root.fail("head_dim", "an even number, because RoPE rotates pairs");
  return head_dim;
}

std::int64_t read_intermediate_size(const JsonObject& root, const Family& family) {
  const std::string_view key = family.mlp_size_key;
  if (!family.adjusts_intermediate_size)
    return root.integer(key, 1, max_width, family.intermediate_size);
  constexpr const char* other = "block_ff_dim";
  const std::int64_t size = root.integer(root.contains(other) ? std::string_view(other) : key, 1,
                                         max_width, family.intermediate_size);
  if (!root.flag("block_auto_adjust_ff_dim", true)) return size;
  std::int64_t adjusted = 2 * size / 3;
  constexpr const char* by = "block_ffn_dim_multiplier";
  if (!root.contains(by) || root.find(by) != nullptr) {
    const double factor = root.number(by, 0, 1e6, 1);
    const std::int64_t multiple = root.integer("block_multiple_of", 1, max_width, 256);
    adjusted = static_cast<std::int64_t>(factor * static_cast<double>(adjusted));
    adjusted = (adjusted + multiple - 1) / multiple * multiple;
  }
  if (adjusted < 1 || adjusted > max_width) {
    root.fail(by, fmt::format("a factor that makes an MLP of 1 to {} of {} (it makes {})",
                              max_width, size, adjusted));
  }
  return adjusted;
}

/// Those with another activation read its name from a key of their own.
void check_activation(const JsonObject& root, const Family& family) {
  const auto check = [&](const char* key, const std::string& runs) {
    if (root.text(key, runs) != runs)
      root.unsupported(key, fmt::format("\"{}\" in {}", runs, family.name));
  };
  if (family.relu_squared) {
    check("mlp_hidden_act", "relu2");
    check("mamba_hidden_act", "silu");
  } else if (family.gelu) {
    check("hidden_activation", "gelu_pytorch_tanh");
  } else {
    check("hidden_act", "silu");
  }
}

/// Scales and caps of the embedding, the scores and the logits.
void read_scales(const JsonObject& root, const Family& family, ModelConfig& config) {
  constexpr double most = 1e6;
  if (family.gelu) config.activation = ModelConfig::Activation::gelu_tanh;
  if (family.relu_squared) config.activation = ModelConfig::Activation::relu_squared;
  if (family.scaled_embedding) {
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  }
  if (family.attention_scale > 0)
    config.attention.scale = static_cast<float>(family.attention_scale);
  if (family.reads_query_scale) {
    const double scalar = root.number("query_pre_attn_scalar", 1 / most, most, 256);
    config.attention.scale = static_cast<float>(1 / std::sqrt(scalar));
  }
  if (family.reads_multipliers) {
    const auto factor = [&](const char* key) { return root.number(key, 1 / most, most, 1); };
    config.embedding_scale = factor("embedding_multiplier");
    config.attention.scale = static_cast<float>(factor("attention_multiplier"));
    config.residual_scale = factor("residual_multiplier");
    config.logit_scale = 1 / factor("logits_scaling");
  }
  const auto cap = [&](const char* key, std::optional<double> missing) {
    if (!missing) return 0.0;
    if (!root.contains(key)) return *missing;
    return root.find(key) == nullptr ? 0.0 : root.number(key, 1 / most, most);
  };
  config.attention.softcap =
      static_cast<float>(cap("attn_logit_softcapping", family.attention_softcap));
  config.final_softcap = cap("final_logit_softcapping", family.final_softcap);
}

/// For a path that was mistyped. Whatever else is wrong with it shows when it is read.
void check_model_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const auto type_of = [&](const std::filesystem::path& path) {
    return std::filesystem::status(path, error).type();
  };
  const char* problem = nullptr;
  if (type_of(directory) == std::filesystem::file_type::not_found) {
    problem = "there is no such directory";
  } else if (type_of(directory / "config.json") == std::filesystem::file_type::not_found) {
    problem = "has no config.json";
  } else {
    return;
  }
  throw FileError(
      fmt::format("{}: {}; expected the directory of a model in Hugging Face layout, with its "
                  "config.json, or a GGUF file",
                  path_text(directory), problem));
}

/// The text model of one that reads pictures too, whose config.json has it within: what it lacks is
/// said for the whole.
Json text_part(const Json& json) {
  constexpr const char* inner = "text_config";
  if (!json.is_object() || !json.contains(inner) || !json[inner].is_object()) return json;
  const Json& text = json[inner];
  const auto type = text.find("model_type");
  if (type == text.end() || !type->is_string()) return json;
  if (find_family(type->get_ref<const std::string&>()) == nullptr) return json;
  Json part = text;
  for (const char* key :
       {"tie_word_embeddings", "eos_token_id", "bos_token_id", "quantization_config"}) {
    if (!part.contains(key) && json.contains(key)) part[key] = json[key];
  }
  return part;
}

/// Of a config.json, or what says the same. generation_file: empty for none.
ModelConfig read_config(const Json& json, const std::filesystem::path& file,
                        const std::filesystem::path& generation_file, std::int64_t length) {
  const JsonObject root(json, file);
  const Family& family = read_family(root);
  const std::vector<std::string> unread = unread_keys(json, file, family);
  check_activation(root, family);

  ModelConfig config;
  config.model_type = family.name;
  if (!unread.empty()) config.warnings = {unread_keys_warning(unread, file, family.name)};
  config.hidden_size = root.integer("hidden_size", 1, max_width, family.hidden_size);
  config.intermediate_size = read_intermediate_size(root, family);
  config.vocab_size = root.integer("vocab_size", 1, max_vocab, family.vocab_size);
  config.max_position =
      root.integer("max_position_embeddings", 1, max_positions, family.max_position);

  AttentionShape& attention = config.attention;
  if (family.parts_apart) {
    read_stored_layers(root, max_layers, config);
  } else {
    attention.layers = root.integer("num_hidden_layers", 1, max_layers, family.layers);
  }
  attention.q_heads = root.integer("num_attention_heads", 1, max_heads, family.q_heads);
  attention.kv_heads = read_kv_heads(root, family, attention.q_heads);
  if (family.latent.kv_rank > 0) {
    read_latent(root, family, config);
  } else {
    attention.head_dim = read_head_dim(root, family, config.hidden_size, attention.q_heads);
  }
  read_layers(root, family, config);
  read_global_heads(root, file, family, config);
  read_rope(root, file, family, length, config);
  read_scales(root, family, config);
  read_mixture(root, family, config);
  read_dual_chunk(root, file, config);
  if (family.latent.kv_rank > 0) settle_latent(root, family, config);

  config.rms_norm_eps = root.number(family.rms_norm_eps_key, tiny, 1, family.rms_norm_eps);
  const bool attention_bias =
      family.reads_attention_bias && root.flag("attention_bias", family.attention_bias);
  config.qkv_bias = family.always_qkv_bias || attention_bias;
  config.o_bias = attention_bias && !family.never_o_bias;
  config.mlp_bias = family.reads_mlp_bias && root.flag("mlp_bias", false);
  config.attention_sinks = family.attention_sinks;
  config.norm_inputs = !family.norms.before_attention.empty();
  config.norm_outputs = !family.norms.after_attention.empty();
  config.qk_norm = family.qk_norm;
  config.qk_norm_whole = family.qk_norm_whole;
  config.value_norm = family.value_norm;
  config.layer_scale = family.layer_scale;
  config.output_gate = family.output_gate;
  config.tied_embeddings = root.flag("tie_word_embeddings", family.tied_embeddings);
  if (family.convolution_kernel > 0)
    config.tied_embeddings = root.flag("tie_embedding", config.tied_embeddings);
  read_generation(root, family, generation_file, config);
  return config;
}

}  // namespace

std::int64_t ModelConfig::kv_bytes_per_token(KvDType dtype) const {
  return attention.bytes_per_token(dtype);
}

ModelConfig ModelConfig::load(const std::filesystem::path& model, std::int64_t length) {
  if (length < 0 || length > max_positions) {
    throw InvalidArgument(
        fmt::format("a length of {} tokens for the model's texts; expected 1 to {}, or 0 for the "
                    "length that it was made for",
                    length, max_positions));
  }
  if (is_model_file(model)) {
    const GgufFile file = GgufFile::open(model);
    ModelConfig config = read_config(config_of_gguf(file), model, {}, length);
    config.rope_interleaved = architecture_of(file).interleaved;
    config.delta.tiled = architecture_of(file).tiled_values;
    RopeScaling& scaling = config.rope_scaling;
    if (auto factors = rope_factors_of_gguf(file, config.rotary_dim / 2); !factors.empty()) {
      scaling.pair_factors = std::move(factors);
      scaling.kind = RopeScaling::Kind::frequency_factors;
    }
    for (std::string line : {unread_gguf_warning(file), gguf_chunks_warning(file)}) {
      if (!line.empty()) config.warnings.push_back(std::move(line));
    }
    return config;
  }
  check_model_directory(model);
  const std::filesystem::path file = model / "config.json";
  const Json json = read_python_json_file(file);
  Quantisation::parse(json, file);  // what is unknown is refused now
  ModelConfig config = read_config(text_part(json), file, model / "generation_config.json", length);
  if (std::string line = unread_quantisation_warning(json, file); !line.empty())
    config.warnings.push_back(std::move(line));
  return config;
}

}  // namespace topkv
