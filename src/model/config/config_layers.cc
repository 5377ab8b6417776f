// What differs from layer to layer: sliding windows, recurrences, and layers without RoPE.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/device/gated_delta.h"
#include "src/device/mamba2.h"
#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Sliding = Family::Sliding;

/// 0: none.
std::int64_t read_window(const JsonObject& root, const Family& family) {
  if (root.contains("sliding_window") && root.find("sliding_window") == nullptr) return 0;
  if (!root.contains("sliding_window") && family.window == 0) return 0;
  return root.integer("sliding_window", 1, max_positions, family.window);
}

/// Whether layer l has RoPE, by no_rope_layers (1: it has) or each interval-th without.
std::vector<bool> read_rope_layers(const JsonObject& root, const Family& family,
                                   std::int64_t layers) {
  std::vector<bool> rope(static_cast<std::size_t>(layers), true);
  if (!family.reads_no_rope_layers) return rope;
  constexpr const char* key = "no_rope_layers";
  if (const Json* list = root.find(key); list != nullptr) {
    const auto is_flag = [](const Json& x) { return x == 0 || x == 1; };
    if (!list->is_array() || list->size() != rope.size() ||
        !std::all_of(list->begin(), list->end(), is_flag)) {
      root.fail(key, fmt::format("an array of num_hidden_layers ({}) times 0 or 1", layers));
    }
    std::transform(list->begin(), list->end(), rope.begin(), [](const Json& x) { return x == 1; });
    return rope;
  }
  const std::int64_t interval = root.integer("no_rope_layer_interval", 1, max_positions, 4);
  for (std::int64_t l = 0; l < layers; ++l)
    rope[static_cast<std::size_t>(l)] = (l + 1) % interval != 0;
  return rope;
}

/// The sizes of Gated DeltaNet layers.
GatedDeltaNet read_delta(const JsonObject& root, const GatedDeltaNet& missing) {
  const auto size = [&](const char* key, std::int64_t most, std::int64_t value,
                        std::int64_t least = 1) { return root.integer(key, least, most, value); };
  GatedDeltaNet delta;
  delta.key_heads = size("linear_num_key_heads", most_delta_heads, missing.key_heads);
  delta.value_heads = size("linear_num_value_heads", most_delta_heads, missing.value_heads);
  delta.key_dim = size("linear_key_head_dim", most_delta_key_dim, missing.key_dim);
  delta.value_dim = size("linear_value_head_dim", most_delta_value_dim, missing.value_dim);
  delta.kernel = size("linear_conv_kernel_dim", most_delta_kernel, missing.kernel, 2);
  if (delta.value_heads % delta.key_heads != 0) {
    root.fail("linear_num_value_heads",
              fmt::format("a multiple of linear_num_key_heads ({})", delta.key_heads));
  }
  return delta;
}

constexpr const char* key_of_types = "layer_types";

/// Refuses a model without attention. Sizes of states that are all 0 are left out.
void settle_states(const JsonObject& root, std::string_view key, std::vector<std::int64_t>& sizes) {
  if (std::ranges::none_of(sizes, [](std::int64_t size) { return size == 0; }))
    root.fail(key, "one layer of full attention, or more");
  if (std::ranges::none_of(sizes, [](std::int64_t size) { return size > 0; })) sizes.clear();
}

constexpr std::string_view mamba_part = "linear_attention";
constexpr std::string_view attention_part = "full_attention";
constexpr std::string_view mlp_part = "mlp";
constexpr std::string_view experts_part = "moe";

/// Where files say which part each of their layers is.
std::string_view key_of_parts(const JsonObject& root) {
  for (const std::string_view key : {"layers_block_type", "layer_types"})
    if (root.find(key) != nullptr) return key;
  return "hybrid_override_pattern";
}

/// Which part each layer of the file is, by names or by the letters of a pattern.
std::vector<std::string> read_parts(const JsonObject& root) {
  const std::string_view key = key_of_parts(root);
  const Json* given = root.find(key);
  constexpr std::string_view runs =
      "attention (full_attention, *), Mamba-2 (linear_attention, M), "
      "MLPs (mlp, -) and experts (moe, E), one in each layer";
  std::vector<std::string> parts;
  const auto add = [&](const Json& name, std::string_view letters) {
    struct Part {
      std::string_view name, older, letter;
    };
    for (const Part& part :
         {Part{mamba_part, "mamba", "M"}, Part{attention_part, "attention", "*"},
          Part{mlp_part, mlp_part, "-"}, Part{experts_part, experts_part, "E"}}) {
      const bool is =
          letters.empty() ? name == part.name || name == part.older : letters == part.letter;
      if (is) parts.emplace_back(part.name);
      if (is) return;
    }
    root.unsupported(key, runs);
  };
  if (given != nullptr && given->is_array()) {
    for (const Json& name : *given) add(name, {});
    return parts;
  }
  for (const char letter : root.text(key)) add({}, std::string_view(&letter, 1));
  return parts;
}

/// Which layers have a state. recurrent: what layer_types calls them; older_names: files may have
/// "mamba" and "attention". missing: of a layer, if there is no layer_types.
template <class Missing>
void read_recurrent_layers(const JsonObject& root, std::string_view recurrent, bool older_names,
                           const Missing& missing, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.attention.layers);
  std::vector<std::int64_t>& sizes = config.attention.state_size;
  const Json* types = root.find(key_of_types);
  if (types != nullptr && (!types->is_array() || types->size() != layers))
    root.fail(key_of_types, fmt::format("an array of num_hidden_layers ({}) strings", layers));
  for (std::size_t l = 0; l < layers; ++l) {
    const auto is = [&](std::string_view name, std::string_view older) {
      return (*types)[l] == name || (older_names && (*types)[l] == older);
    };
    const bool has_state =
        types == nullptr ? missing(static_cast<std::int64_t>(l)) : is(recurrent, "mamba");
    if (types != nullptr && !has_state && !is("full_attention", "attention"))
      root.unsupported(key_of_types, fmt::format("\"full_attention\" and \"{}\"", recurrent));
    sizes.push_back(has_state ? config.state_size() : 0);
  }
  settle_states(root, key_of_types, sizes);
}

/// Gated DeltaNet: by layer_types, or all layers but each full_attention_interval-th.
void read_delta_layers(const JsonObject& root, const Family& family, ModelConfig& config) {
  config.delta = read_delta(root, family.delta);
  constexpr const char* gate = "attn_output_gate";
  if (!root.flag(gate, true)) root.unsupported(gate, "true");
  const std::int64_t interval = root.find(key_of_types) != nullptr
                                    ? 1
                                    : root.integer("full_attention_interval", 1, max_positions, 4);
  read_recurrent_layers(
      root, "linear_attention", false, [&](std::int64_t l) { return (l + 1) % interval != 0; },
      config);
}

/// Short convolutions: by layer_types, or all layers that full_attn_idxs does not list; without
/// either there are none.
void read_convolution_layers(const JsonObject& root, const Family& family, ModelConfig& config) {
  constexpr const char* bias = "conv_bias";
  if (root.flag(bias, false)) root.unsupported(bias, "false");
  config.convolution.width = config.hidden_size;
  config.convolution.kernel = root.integer("conv_L_cache", 2, 64, family.convolution_kernel);
  constexpr const char* key = "full_attn_idxs";
  const Json* listed = root.find(key);
  const auto is_layer = [&](const Json& x) {
    return x.is_number_integer() && x >= 0 && x < config.attention.layers;
  };
  if (listed != nullptr &&
      (!listed->is_array() || !std::all_of(listed->begin(), listed->end(), is_layer))) {
    root.fail(key, fmt::format("an array of numbers from 0 to {}", config.attention.layers - 1));
  }
  read_recurrent_layers(
      root, "conv", false,
      [&](std::int64_t l) {
        return listed != nullptr && std::find(listed->begin(), listed->end(), l) == listed->end();
      },
      config);
}

/// dt is not clamped here: a file that wants it clamped is refused. (Nemotron-H in transformers
/// does not read the key. There a call of many tokens clamps dt to time_step_min, one of a token
/// does not.)
void check_time_step_limit(const JsonObject& root) {
  constexpr const char* key = "time_step_limit";
  const Json* limit = root.find(key);
  if (limit == nullptr) return;
  const Json infinity = {{"__float__", "Infinity"}};  // as transformers 5 writes it
  if (!limit->is_array() || limit->size() != 2 || limit->front() != 0.0 ||
      limit->back() != infinity) {
    root.unsupported(key, R"([0.0, {"__float__": "Infinity"}], which is no limit)");
  }
}

/// Mamba-2: by layer_types; without it all layers are.
void read_mamba_layers(const JsonObject& root, const Family& family, ModelConfig& config) {
  const FamilyMamba& own = family.mamba;
  for (const char* key : {"mamba_proj_bias", "use_bias"})
    if (root.flag(key, false)) root.unsupported(key, "false");
  check_time_step_limit(root);
  Mamba2& mamba = config.mamba;
  mamba.heads = root.integer(own.heads, 1, most_mamba_heads, own.sizes.heads);
  mamba.groups = root.integer(own.groups, 1, most_mamba_heads, own.sizes.groups);
  mamba.state_dim = root.integer(own.state_dim, 1, most_mamba_state_dim, own.sizes.state_dim);
  mamba.kernel = root.integer(own.kernel, 2, most_mamba_kernel, own.sizes.kernel);
  if (mamba.heads % mamba.groups != 0) {
    root.fail(own.heads, fmt::format("a multiple of {} ({})", own.groups, mamba.groups));
  }
  const Json* dim = root.find(own.head_dim);
  if (own.sizes.head_dim > 0 || (dim != nullptr && *dim != "auto")) {
    mamba.head_dim = root.integer(own.head_dim, 1, most_mamba_head_dim, own.sizes.head_dim);
  } else {
    constexpr const char* expand = "mamba_expand";
    const std::int64_t width = root.integer(expand, 1, 1024, 2) * config.hidden_size;
    if (width % mamba.heads != 0 || width / mamba.heads > most_mamba_head_dim) {
      root.fail(own.heads, fmt::format("a number that divides {} times hidden_size ({}) into heads "
                                       "of {} elements at most",
                                       expand, width, most_mamba_head_dim));
    }
    mamba.head_dim = width / mamba.heads;
  }
  config.mamba_bias = root.flag(own.bias, true);
  if (family.parts_apart) {
    const std::vector<std::string> parts = read_parts(root);
    for (const ModelConfig::StoredLayer& layer : config.stored_layers) {
      const bool recurrent = parts[static_cast<std::size_t>(layer.mixer)] == mamba_part;
      config.attention.state_size.push_back(recurrent ? mamba.state_size() : 0);
    }
    return settle_states(root, key_of_parts(root), config.attention.state_size);
  }
  read_recurrent_layers(
      root, "linear_attention", true, [](std::int64_t) { return true; }, config);
}

/// Whether layers have RoPE, by position_embedding_type.
bool read_position_type(const JsonObject& root) {
  constexpr const char* key = "position_embedding_type";
  if (root.find(key) == nullptr) return false;
  const std::string type = root.text(key);
  if (type != "rope" && type != "nope") root.unsupported(key, "\"rope\" and \"nope\"");
  return type == "rope";
}

/// Which layers have the window when layer_types does not say.
std::vector<bool> default_windows(const JsonObject& root, const Family& family,
                                  const std::vector<bool>& rope, bool any) {
  std::vector<bool> windowed(rope.size(), false);
  std::int64_t first = 0, pattern = 0;
  if (family.sliding == Sliding::last_layers && any) {
    first = root.integer("max_window_layers", 0, max_positions, 28);
  }
  if (family.sliding == Sliding::pattern) {
    pattern = family.reads_sliding_pattern
                  ? root.integer("sliding_window_pattern", 1, max_positions, family.sliding_pattern)
                  : family.sliding_pattern;
  }
  for (std::size_t l = 0; any && l < windowed.size(); ++l) {
    const auto layer = static_cast<std::int64_t>(l);
    switch (family.sliding) {
      case Sliding::never:
        break;
      case Sliding::all_layers:
      case Sliding::all_if_on:
        windowed[l] = true;
        break;
      case Sliding::last_layers:
        windowed[l] = layer >= first;
        break;
      case Sliding::no_rope:
        windowed[l] = !rope[l];
        break;
      case Sliding::pattern:
        windowed[l] = (layer + 1) % pattern != 0;
        break;
    }
  }
  return windowed;
}

std::vector<bool> typed_windows(const JsonObject& root, const Json& types, std::size_t layers,
                                bool any, bool switched) {
  constexpr const char* key = "layer_types";
  if (!types.is_array() || types.size() != layers) {
    root.fail(key, fmt::format("an array of num_hidden_layers ({}) strings", layers));
  }
  std::vector<bool> windowed(layers, false);
  for (std::size_t l = 0; l < layers; ++l) {
    if (types[l] == "full_attention") continue;
    if (types[l] != "sliding_attention") {
      root.unsupported(key, "\"full_attention\" and \"sliding_attention\"");
    }
    if (!any) {
      root.fail("sliding_window",
                fmt::format("a window{}, because layer_types has \"sliding_attention\"",
                            switched ? " and use_sliding_window true" : ""));
    }
    windowed[l] = true;
  }
  return windowed;
}

}  // namespace

void read_stored_layers(const JsonObject& root, std::int64_t most, ModelConfig& config) {
  const std::vector<std::string> parts = read_parts(root);
  const std::string_view key = key_of_parts(root);
  constexpr const char* again = "num_hidden_layers";
  const auto count = std::ssize(parts);
  if (count < 1 || count > most) root.fail(key, fmt::format("1 to {} layers", most));
  if (root.integer(again, 1, most, count) != count)
    root.fail(again, fmt::format("the number of layers of {} ({})", key, count));
  std::vector<bool> has_experts;
  for (std::int64_t at = 0; at < count; ++at) {
    const std::string& part = parts[static_cast<std::size_t>(at)];
    if (part != mlp_part && part != experts_part) {
      config.stored_layers.push_back({at, -1});
      has_experts.push_back(false);
    } else if (config.stored_layers.empty() || config.stored_layers.back().mlp >= 0) {
      root.unsupported(key, "MLPs and experts that follow attention or Mamba-2, one at a time");
    } else {
      config.stored_layers.back().mlp = at;
      has_experts.back() = part == experts_part;
    }
  }
  if (std::ranges::find(has_experts, true) != has_experts.end())
    config.mixture.layers = std::move(has_experts);
  config.attention.layers = std::ssize(config.stored_layers);
}

void read_layers(const JsonObject& root, const Family& family, ModelConfig& config) {
  const std::vector<bool> rope = read_rope_layers(root, family, config.attention.layers);
  if (!std::all_of(rope.begin(), rope.end(), [](bool has) { return has; })) {
    for (const bool has : rope)
      config.layer_rope.push_back(has ? LayerRope::model : LayerRope::none);
  }
  if (family.never_rope || (family.reads_position_type && !read_position_type(root))) {
    config.layer_rope.assign(rope.size(), LayerRope::none);
  }
  if (family.mamba.sizes.heads > 0) read_mamba_layers(root, family, config);
  if (family.delta.key_heads > 0) read_delta_layers(root, family, config);
  if (family.convolution_kernel > 0) read_convolution_layers(root, family, config);
  if (family.sliding == Sliding::never) return;
  const bool everywhere =
      family.sliding == Sliding::all_layers || family.sliding == Sliding::all_if_on;
  const bool switched = family.sliding == Sliding::last_layers ||
                        family.sliding == Sliding::all_if_on || family.sliding == Sliding::no_rope;
  const bool on = !switched || root.flag("use_sliding_window", false);
  const std::int64_t window = on ? read_window(root, family) : 0;
  if (family.sliding == Sliding::pattern && window == 0) {
    root.fail("sliding_window", "a window, because some of the layers have one");
  }
  const Json* types = everywhere ? nullptr : root.find("layer_types");
  const std::vector<bool> windowed =
      types == nullptr ? default_windows(root, family, rope, window != 0)
                       : typed_windows(root, *types, rope.size(), window != 0, switched);
  if (std::none_of(windowed.begin(), windowed.end(), [](bool has) { return has; })) return;
  for (const bool has : windowed) config.attention.sliding_window.push_back(has ? window : 0);
}

}  // namespace topkv
