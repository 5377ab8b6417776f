// Heads that differ between layers with a window and the others, layers that share rows, and inputs
// of each token for each layer.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t most_heads = 4096;
constexpr std::int64_t most_head_dim = 4096;

struct Heads {
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;

  bool operator==(const Heads&) const = default;
};

void check_heads(const JsonObject& from, const char* heads_key, const char* dim_key,
                 const Heads& heads, std::int64_t q_heads) {
  if (q_heads % heads.kv_heads != 0)
    from.fail(heads_key, fmt::format("a divisor of num_attention_heads ({})", q_heads));
  if (heads.head_dim % 2 != 0) from.fail(dim_key, "an even number, because RoPE rotates pairs");
}

/// The heads of each layer as per_layer_config gives them; others have those of the whole model.
std::vector<Heads> heads_of_layers(const JsonObject& root, const std::filesystem::path& file,
                                   const Json& given, const Heads& whole,
                                   const AttentionShape& attention) {
  constexpr const char* key = "per_layer_config";
  if (!given.is_object())
    root.fail(key, "an object of layers, by their numbers, and what each has of its own");
  std::vector<Heads> all(static_cast<std::size_t>(attention.layers), whole);
  for (const auto& [name, values] : given.items()) {
    std::int64_t layer = -1;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data(), end, layer);
    if (error != std::errc() || stop != end || layer < 0 || layer >= attention.layers ||
        !values.is_object()) {
      root.fail(key, fmt::format("an object of layers 0 to {}, by their numbers, and what each has "
                                 "of its own",
                                 attention.layers - 1));
    }
    const JsonObject own(values, file, fmt::format("per_layer_config.{}.", layer));
    for (const auto& [entry, value] : values.items()) {
      if (entry != "head_dim" && entry != "num_key_value_heads")
        root.unsupported(key, "layers that differ in head_dim and num_key_value_heads");
    }
    Heads& of = all[static_cast<std::size_t>(layer)];
    of.head_dim = own.integer("head_dim", 2, most_head_dim, whole.head_dim);
    of.kv_heads = own.integer("num_key_value_heads", 1, most_heads, whole.kv_heads);
    check_heads(own, "num_key_value_heads", "head_dim", of, attention.q_heads);
  }
  return all;
}

/// Heads of the layers without a window.
Heads global_heads(const JsonObject& root, const std::filesystem::path& file, const Family& family,
                   const AttentionShape& attention, bool values_from_keys) {
  const Heads whole{attention.kv_heads, attention.head_dim};
  constexpr const char* each = "per_layer_config";
  if (const Json* given = root.find(each); given != nullptr && !given->empty()) {
    const std::vector<Heads> all = heads_of_layers(root, file, *given, whole, attention);
    Heads global = all[static_cast<std::size_t>(attention.layers - 1)];
    for (std::int64_t l = 0; l < attention.layers; ++l) {
      const bool windowed = attention.window_of(l) > 0;
      if (all[static_cast<std::size_t>(l)] == (windowed ? whole : global)) continue;
      root.unsupported(each,
                       "layers with a window that are alike, and other layers that are alike");
    }
    return global;
  }
  constexpr const char* heads_key = "num_global_key_value_heads";
  constexpr const char* dim_key = "global_head_dim";
  Heads global = whole;
  global.head_dim = root.integer(dim_key, 2, most_head_dim, family.global_head_dim);
  if (values_from_keys && root.find(heads_key) != nullptr)
    global.kv_heads = root.integer(heads_key, 1, most_heads);
  check_heads(root, heads_key, dim_key, global, attention.q_heads);
  return global;
}

/// The last num_kv_shared_layers layers attend the rows of the last layer before them of their
/// kind.
void read_shared_rows(const JsonObject& root, ModelConfig& config) {
  AttentionShape& attention = config.attention;
  constexpr const char* key = "num_kv_shared_layers";
  const std::int64_t shared = root.integer(key, 0, attention.layers - 1, 0);
  if (shared == 0) return;
  const std::int64_t first = attention.layers - shared;
  for (std::int64_t l = 0; l < attention.layers; ++l) {
    std::int64_t rows = std::min(l, first - 1);
    if (l < first) {
      rows = l;
    } else {
      while (rows >= 0 && attention.window_of(rows) != attention.window_of(l)) --rows;
    }
    if (rows < 0) {
      root.fail(key, fmt::format("a number that leaves a layer of each kind of layer_types with "
                                 "rows of its own (layer {} has none)",
                                 l));
    }
    attention.row_layer.push_back(rows);
  }
  if (root.flag("use_double_wide_mlp", false))
    config.sharing_intermediate_size = 2 * config.intermediate_size;
}

}  // namespace

void read_global_heads(const JsonObject& root, const std::filesystem::path& file,
                       const Family& family, ModelConfig& config) {
  if (family.global_head_dim == 0) return;
  AttentionShape& attention = config.attention;
  constexpr const char* both_ways = "use_bidirectional_attention";
  if (root.find(both_ways) != nullptr && root.text(both_ways) != "vision")
    root.unsupported(both_ways, "attention to a token itself and to earlier ones (\"vision\")");
  // transformers makes the last layer one of full attention, whatever layer_types says of it.
  if (!attention.sliding_window.empty()) attention.sliding_window.back() = 0;
  config.values_from_keys = root.flag("attention_k_eq_v", false);
  const Heads global = global_heads(root, file, family, attention, config.values_from_keys);
  attention.sliding_kv_heads = attention.kv_heads;
  attention.sliding_head_dim = attention.head_dim;
  attention.kv_heads = global.kv_heads;
  attention.head_dim = global.head_dim;
  if (attention.sliding_head_dim != attention.head_dim)
    config.sliding_rotary_dim = attention.sliding_head_dim;
  read_shared_rows(root, config);
  if (family.layer_input_size == 0) return;
  constexpr const char* input = "hidden_size_per_layer_input";
  if (!root.contains(input) || root.find(input) != nullptr) {  // null: there are none
    config.layer_inputs.size =
        root.integer(input, 0, max_width / attention.layers, family.layer_input_size);
  }
  if (config.layer_inputs.size > 0) {
    // A row of the table has a number of 32 bits, as a token has.
    const std::int64_t most = std::numeric_limits<Token>::max() / attention.layers;
    config.layer_inputs.vocab =
        root.integer("vocab_size_per_layer_input", config.vocab_size,
                     std::min(std::int64_t{1} << 24, most), family.vocab_size);
  }
}

}  // namespace topkv
