// What differs from layer to layer: sliding windows, and layers without RoPE.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

void read_layers(const JsonObject& root, const Family& family, ModelConfig& config) {
  const std::vector<bool> rope = read_rope_layers(root, family, config.attention.layers);
  if (!std::all_of(rope.begin(), rope.end(), [](bool has) { return has; })) {
    for (const bool has : rope)
      config.layer_rope.push_back(has ? LayerRope::model : LayerRope::none);
  }
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
