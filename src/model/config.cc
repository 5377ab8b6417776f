// Reads config.json the way transformers 5 does: the same keys, the same value for a key that is
// missing, per family. What would change the forward pass in a way that is not implemented is
// refused; keys that the family's network does not read are left aside, as they are there, and told
// unless they are harmless (config_keys.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/json_file.h"
#include "src/core/mapped_file.h"
#include "src/core/printable.h"
#include "src/model/config_keys.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// Bounds far above any model there is and far below any overflow of their products.
constexpr std::int64_t max_layers = 1000;
constexpr std::int64_t max_heads = 4096;
constexpr std::int64_t max_head_dim = 4096;
constexpr std::int64_t max_width = std::int64_t{1} << 22;
constexpr std::int64_t max_vocab = std::int64_t{1} << 24;
constexpr std::int64_t max_positions = std::int64_t{1} << 40;
constexpr double tiny = std::numeric_limits<double>::min();

/// What tells the families apart: defaults of missing keys and which projections have biases.
struct Family {
  std::string_view name;
  std::int64_t vocab_size;
  std::int64_t intermediate_size;
  std::int64_t kv_heads;  ///< 0: as many as query heads
  std::int64_t head_dim;  ///< 0: hidden_size / num_attention_heads
  std::int64_t max_position;
  Token bos;  ///< -1: none
  Token eos;
  bool reads_attention_bias;  ///< attention_bias puts biases on q, k, v and o
  bool always_qkv_bias;       ///< q, k, v have biases and o has none
  bool reads_mlp_bias;
  bool qk_norm;
  enum class Sliding { never, all_layers, by_layer } sliding;
};

constexpr std::array<Family, 4> families = {{
    {"llama", 32000, 11008, 0, 0, 2048, 1, 2, true, false, true, false, Family::Sliding::never},
    {"mistral", 32000, 14336, 8, 0, 131072, 1, 2, false, false, false, false,
     Family::Sliding::all_layers},
    {"qwen2", 151936, 22016, 32, 0, 32768, -1, -1, false, true, false, false,
     Family::Sliding::by_layer},
    {"qwen3", 151936, 22016, 32, 128, 32768, -1, -1, true, false, false, true,
     Family::Sliding::by_layer},
}};

const Family& family_of(const JsonObject& root) {
  const std::string type = root.text("model_type");
  const auto* family = std::find_if(families.begin(), families.end(),
                                    [&](const Family& f) { return f.name == type; });
  if (family == families.end()) root.unsupported("model_type", "llama, mistral, qwen2 and qwen3");
  return *family;
}

std::int64_t read_kv_heads(const JsonObject& root, const Family& family, std::int64_t q_heads) {
  constexpr const char* key = "num_key_value_heads";
  std::int64_t kv_heads = family.kv_heads;
  if (root.contains(key)) {
    kv_heads = root.find(key) == nullptr ? 0 : root.integer(key, 1, max_heads);
  }
  if (kv_heads == 0) kv_heads = q_heads;
  if (q_heads % kv_heads != 0) {
    root.fail(key, fmt::format("a divisor of num_attention_heads ({}); missing means {} in {}",
                               q_heads, kv_heads, family.name));
  }
  return kv_heads;
}

std::int64_t read_head_dim(const JsonObject& root, const Family& family, std::int64_t hidden_size,
                           std::int64_t q_heads) {
  if (root.find("head_dim") == nullptr && family.head_dim == 0) {
    if (hidden_size % (2 * q_heads) != 0) {
      root.fail(
          "hidden_size",
          fmt::format("an even multiple of num_attention_heads ({}), for there is no head_dim",
                      q_heads));
    }
    return hidden_size / q_heads;
  }
  const std::int64_t head_dim = root.integer("head_dim", 2, max_head_dim, family.head_dim);
  if (head_dim % 2 != 0) root.fail("head_dim", "an even number, for RoPE turns pairs");
  return head_dim;
}

/// The window of every layer; empty when all attend everything.
std::vector<std::int64_t> read_sliding_window(const JsonObject& root, const Family& family,
                                              std::int64_t layers) {
  constexpr std::int64_t default_window = 4096;
  const auto read_window = [&]() -> std::int64_t {  // 0: none
    if (root.contains("sliding_window") && root.find("sliding_window") == nullptr) return 0;
    return root.integer("sliding_window", 1, max_positions, default_window);
  };
  const auto count = static_cast<std::size_t>(layers);
  if (family.sliding == Family::Sliding::never) return {};
  if (family.sliding == Family::Sliding::all_layers) {
    const std::int64_t window = read_window();
    return window == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>(count, window);
  }

  const std::int64_t window = root.flag("use_sliding_window", false) ? read_window() : 0;
  std::vector<std::int64_t> windows(count, 0);
  if (const Json* types = root.find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != count) {
      root.fail("layer_types", fmt::format("an array of num_hidden_layers ({}) strings", layers));
    }
    for (std::size_t layer = 0; layer < count; ++layer) {
      const Json& type = (*types)[layer];
      if (type == "full_attention") continue;
      if (type != "sliding_attention") {
        root.unsupported("layer_types", "\"full_attention\" and \"sliding_attention\"");
      }
      if (window == 0) {
        root.fail(
            "sliding_window",
            "a window and use_sliding_window true, for layer_types has \"sliding_attention\"");
      }
      windows[layer] = window;
    }
  } else if (window != 0) {
    const std::int64_t first = root.integer("max_window_layers", 0, max_positions, 28);
    for (std::int64_t layer = first; layer < layers; ++layer) {
      windows[static_cast<std::size_t>(layer)] = window;
    }
  }
  const bool any = std::any_of(windows.begin(), windows.end(), [](auto w) { return w != 0; });
  return any ? windows : std::vector<std::int64_t>{};
}

void check_rotates_all(const JsonObject& object) {
  if (object.find("partial_rotary_factor") == nullptr) return;
  if (object.number("partial_rotary_factor", 0, 1) != 1) {
    object.unsupported("partial_rotary_factor", "RoPE over the whole head (1)");
  }
}

/// The length that a scaling starts from. transformers takes it from the top level when it is
/// there.
double read_original_max_position(const JsonObject& root, const JsonObject& rope,
                                  std::int64_t missing) {
  constexpr const char* key = "original_max_position_embeddings";
  const JsonObject& from = root.find(key) != nullptr ? root : rope;
  return static_cast<double>(from.integer(key, 1, max_positions, missing));
}

RopeScaling read_scaling(const JsonObject& root, const JsonObject& rope,
                         std::int64_t max_position) {
  constexpr double most = 1e9;
  const char* key = rope.contains("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  RopeScaling scaling;
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.number("factor", 1 / most, most);
    scaling.original_max_position = read_original_max_position(root, rope, max_position);
    return scaling;
  }
  if (type != "llama3") rope.unsupported(key, "\"default\", \"linear\" and \"llama3\"");
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = rope.number("factor", 1 / most, most);
  scaling.low_freq_factor = rope.number("low_freq_factor", 1 / most, most);
  scaling.high_freq_factor = rope.number("high_freq_factor", 1 / most, most);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail("high_freq_factor",
              fmt::format("more than low_freq_factor ({})", scaling.low_freq_factor));
  }
  scaling.original_max_position = read_original_max_position(root, rope, max_position);
  return scaling;
}

/// rope_theta and rope_scaling, from the keys that transformers wrote before version 5
/// (rope_theta, rope_scaling) or since (rope_parameters).
void read_rope(const JsonObject& root, const std::filesystem::path& file, ModelConfig& config) {
  const auto theta = [](const JsonObject& object, double missing) {
    if (object.find("rope_theta") == nullptr) return missing;
    return object.number("rope_theta", 1, 1e30);
  };
  check_rotates_all(root);
  config.rope_theta = theta(root, 10000);
  // When both are there, a rope_scaling that says something wins.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = root.find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    const JsonObject rope(*value, file, std::string(key) + ".");
    for (const auto& [name, inner] : value->items()) {
      if (inner.is_object()) root.unsupported(key, "one set of RoPE parameters for all layers");
    }
    check_rotates_all(rope);
    config.rope_theta = theta(rope, config.rope_theta);
    config.rope_scaling = read_scaling(root, rope, config.max_position);
    return;
  }
}

std::int64_t last_token(std::int64_t vocab_size) { return vocab_size - 1; }

Token read_bos(const JsonObject& object, std::int64_t vocab_size, Token missing) {
  if (!object.contains("bos_token_id")) return missing;
  if (object.find("bos_token_id") == nullptr) return -1;
  return static_cast<Token>(object.integer("bos_token_id", 0, last_token(vocab_size)));
}

/// One token, a list of them or null.
std::vector<Token> read_eos(const JsonObject& object, std::int64_t vocab_size,
                            std::vector<Token> missing) {
  constexpr const char* key = "eos_token_id";
  if (!object.contains(key)) return missing;
  const Json* value = object.find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<Token> tokens;
  for (const Json& token : list) {
    if (!token.is_number_unsigned() ||
        token.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
      object.fail(key, fmt::format("token ids from 0 to {}", last_token(vocab_size)));
    }
    tokens.push_back(token.get<Token>());
  }
  return tokens;
}

void read_special_tokens(const JsonObject& root, const Family& family,
                         const std::filesystem::path& generation_file, ModelConfig& config) {
  config.bos = read_bos(root, config.vocab_size, family.bos);
  config.eos = read_eos(root, config.vocab_size,
                        family.eos < 0 ? std::vector<Token>{} : std::vector<Token>{family.eos});
  if (!file_exists(generation_file)) return;
  // What generation_config.json says about them holds for generation.
  const Json json = read_json_file(generation_file);
  const JsonObject generation(json, generation_file);
  if (generation.find("bos_token_id") != nullptr) {
    config.bos = read_bos(generation, config.vocab_size, -1);
  }
  if (generation.find("eos_token_id") != nullptr) {
    config.eos = read_eos(generation, config.vocab_size, {});
  }
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
  } else if (type_of(directory) == std::filesystem::file_type::regular) {
    problem = "is not a directory";
  } else if (type_of(directory / "config.json") == std::filesystem::file_type::not_found) {
    problem = "has no config.json";
  } else {
    return;
  }
  throw FileError(
      fmt::format("{}: {}; expected the directory of a model in Hugging Face layout, with its "
                  "config.json",
                  path_text(directory), problem));
}

}  // namespace

std::int64_t ModelConfig::kv_bytes_per_token(KvDType dtype) const {
  return attention.layers * attention.kv_heads * dtype.row_bytes(attention.head_dim);
}

std::int64_t ModelConfig::reach() const {
  if (rope_scaling.kind != RopeScaling::Kind::linear) return max_position;
  const double stretched = rope_scaling.original_max_position * rope_scaling.factor;
  return std::max(max_position, static_cast<std::int64_t>(
                                    std::min(stretched, static_cast<double>(max_positions))));
}

std::string ModelConfig::beyond_reach(std::int64_t tokens) const {
  if (tokens <= reach()) return {};
  return fmt::format(
      "{} tokens are more than the {} positions that the model was made for "
      "(max_position_embeddings{}); what it makes of those beyond may be worthless",
      tokens, reach(), reach() == max_position ? "" : " and a linear rope_scaling");
}

ModelConfig ModelConfig::load(const std::filesystem::path& directory) {
  check_model_directory(directory);
  const std::filesystem::path file = directory / "config.json";
  const Json json = read_json_file(file);
  const JsonObject root(json, file);
  const Family& family = family_of(root);
  const std::vector<std::string> unread = unread_keys(json, file, family.name);
  if (root.text("hidden_act", "silu") != "silu") root.unsupported("hidden_act", "\"silu\"");

  ModelConfig config;
  config.model_type = family.name;
  if (!unread.empty()) config.warnings = {unread_keys_warning(unread, file, family.name)};
  config.hidden_size = root.integer("hidden_size", 1, max_width, 4096);
  config.intermediate_size =
      root.integer("intermediate_size", 1, max_width, family.intermediate_size);
  config.vocab_size = root.integer("vocab_size", 1, max_vocab, family.vocab_size);
  config.max_position =
      root.integer("max_position_embeddings", 1, max_positions, family.max_position);

  AttentionShape& attention = config.attention;
  attention.layers = root.integer("num_hidden_layers", 1, max_layers, 32);
  attention.q_heads = root.integer("num_attention_heads", 1, max_heads, 32);
  attention.kv_heads = read_kv_heads(root, family, attention.q_heads);
  attention.head_dim = read_head_dim(root, family, config.hidden_size, attention.q_heads);
  attention.sliding_window = read_sliding_window(root, family, attention.layers);

  config.rms_norm_eps = root.number("rms_norm_eps", tiny, 1, 1e-6);
  read_rope(root, file, config);

  const bool attention_bias = family.reads_attention_bias && root.flag("attention_bias", false);
  config.qkv_bias = family.always_qkv_bias || attention_bias;
  config.o_bias = attention_bias;
  config.mlp_bias = family.reads_mlp_bias && root.flag("mlp_bias", false);
  config.qk_norm = family.qk_norm;
  config.tied_embeddings = root.flag("tie_word_embeddings", false);
  read_special_tokens(root, family, directory / "generation_config.json", config);
  return config;
}

}  // namespace topkv
