// Mixtures of experts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t max_experts = 1024;  // that a router's kernel chooses among

/// transformers wrote the number under either name. Which of two numbers the weights have cannot be
/// told here.
const char* experts_key(const JsonObject& root, const Family& family) {
  if (family.mixture.reads_groups) return "n_routed_experts";
  constexpr const char* name = "num_experts";
  constexpr const char* other = "num_local_experts";
  const auto& own = family.own_keys;
  const bool has_name = std::ranges::find(own, name) != own.end();
  if (has_name && std::ranges::find(own, other) == own.end()) return name;
  if (!has_name || !root.contains(name)) return other;
  const Json* first = root.find(name);
  const Json* second = root.find(other);
  if (first != nullptr && second != nullptr && *first != *second) {
    root.fail(other, fmt::format("the value of {} ({}), because both are the number of experts: "
                                 "keep the one that matches the weights",
                                 name, shown(*first)));
  }
  return name;
}

/// Which layers have experts (transformers' Qwen3MoeDecoderLayer); empty: all.
std::vector<bool> expert_layers(const JsonObject& root, std::int64_t layers) {
  const std::int64_t step = root.integer("decoder_sparse_step", 1, max_positions, 1);
  std::vector<bool> has(static_cast<std::size_t>(layers));
  for (std::int64_t l = 0; l < layers; ++l) has[static_cast<std::size_t>(l)] = (l + 1) % step == 0;
  constexpr const char* key = "mlp_only_layers";
  if (const Json* dense = root.find(key); dense != nullptr) {
    const auto is_layer = [](const Json& x) { return x.is_number_integer() && x >= 0; };
    if (!dense->is_array() || !std::all_of(dense->begin(), dense->end(), is_layer)) {
      root.fail(key, "an array of numbers of layers");
    }
    for (const Json& layer : *dense) {  // those beyond the last say nothing, as in transformers
      if (layer < layers) has[layer.get<std::size_t>()] = false;
    }
  }
  if (std::ranges::all_of(has, [](bool one) { return one; })) return {};
  return has;
}

/// Which layers have experts in families whose first layers are dense; empty: all.
std::vector<bool> layers_after_dense(const JsonObject& root, const FamilyMixture& own,
                                     std::int64_t layers) {
  const std::int64_t dense = root.integer(own.first_dense_key, 0, max_positions, own.first_dense);
  std::vector<bool> has(static_cast<std::size_t>(layers));
  for (std::int64_t l = 0; l < layers; ++l) has[static_cast<std::size_t>(l)] = l >= dense;
  constexpr const char* key = "mlp_layer_types";  // of DeepSeek's families
  if (const Json* types = root.find(key); types != nullptr && own.reads_groups) {
    const auto is_type = [](const Json& x) { return x == "dense" || x == "sparse"; };
    if (!types->is_array() || std::ssize(*types) != layers ||
        !std::all_of(types->begin(), types->end(), is_type)) {
      root.fail(key, fmt::format("an array of \"dense\" or \"sparse\", one for each of {} layers",
                                 layers));
    }
    for (std::size_t l = 0; l < types->size(); ++l) has[l] = (*types)[l] == "sparse";
  }
  if (own.reads_groups && root.integer("moe_layer_freq", 1, max_positions, 1) != 1)
    root.unsupported("moe_layer_freq", "experts in each layer after the dense ones (1)");
  if (std::ranges::all_of(has, [](bool one) { return one; })) return {};
  return has;
}

/// How a router chooses and weighs experts: by sigmoids, or in groups.
void read_choice(const JsonObject& root, const Family& family, ExpertMixture& mixture) {
  const FamilyMixture& own = family.mixture;
  mixture.sigmoid = own.sigmoid;
  mixture.choice_bias =
      own.sigmoid && (own.choice_bias_key.empty() || root.flag(own.choice_bias_key, true));
  mixture.softmax_over_all = !own.sigmoid;
  mixture.least_sum = own.least_sum;
  mixture.scale = root.number("routed_scaling_factor", 1e-6, 1e6, own.scale);
  mixture.sums_to_one = root.flag("norm_topk_prob", own.norm_topk_prob);
  if (mixture.sums_to_one && !own.sigmoid)
    root.unsupported("norm_topk_prob", fmt::format("false in {}", family.name));
  if (!own.reads_groups) return;
  const auto known = [&](const char* key, std::string_view value) {
    if (root.find(key) == nullptr || root.text(key) == value) return;
    root.unsupported(key, fmt::format("\"{}\" in {}", value, family.name));
  };
  known("scoring_func", own.sigmoid ? "sigmoid" : "softmax");
  constexpr const char* method = "topk_method";
  constexpr const char* by_group = "group_limited_greedy";
  if (own.sigmoid) {
    known(method, "noaux_tc");
  } else if (root.find(method) == nullptr || root.text(method) != by_group) {
    if (root.find(method) != nullptr && root.text(method) != "greedy")
      root.unsupported(method, fmt::format("\"greedy\" and \"{}\" in {}", by_group, family.name));
    return;
  }
  mixture.groups = root.integer("n_group", 1, max_experts, own.groups);
  mixture.chosen_groups = root.integer("topk_group", 1, max_experts, own.chosen_groups);
  const std::int64_t best = own.sigmoid ? 2 : 1;  // scores that make a group's
  if (mixture.experts % mixture.groups != 0 || mixture.experts / mixture.groups < best) {
    root.fail("n_group", fmt::format("a divisor of n_routed_experts ({}) with groups of {} or more",
                                     mixture.experts, best));
  }
  const std::int64_t of_groups = mixture.chosen_groups * (mixture.experts / mixture.groups);
  if (mixture.chosen_groups > mixture.groups || of_groups < mixture.per_token) {
    root.fail("topk_group",
              fmt::format("at most n_group ({}), and enough groups for num_experts_per_tok ({})",
                          mixture.groups, mixture.per_token));
  }
}

/// What would be another mixture in Nemotron-H: experts whose inputs are projected to a latent, and
/// shared experts with biases or in another number.
void check_parts_apart(const JsonObject& root) {
  constexpr const char* latent = "moe_latent_size";
  if (root.find(latent) != nullptr) root.unsupported(latent, "null: experts that read hidden_size");
  constexpr const char* shared = "n_shared_experts";
  if (root.integer(shared, 0, max_experts, 1) != 1) root.unsupported(shared, "1");
  constexpr const char* bias = "mlp_bias";
  if (root.flag(bias, false)) root.unsupported(bias, "false beside experts");
}

/// Keys of gpt-oss that its own code reads and transformers does not; and one that it misses.
void check_gpt_oss_keys(const JsonObject& root, const ModelConfig& config) {
  if (root.find("rope_scaling") == nullptr && root.find("rope_parameters") == nullptr) {
    root.fail("rope_scaling", "a scaling of RoPE, which gpt-oss's files have (yarn)");
  }
  constexpr double limit = 7;
  if (root.number("swiglu_limit", 0, 1e9, limit) != limit) {
    root.unsupported("swiglu_limit", "7, as transformers does");
  }
  constexpr const char* again = "experts_per_token";
  if (root.find(again) != nullptr &&
      root.integer(again, 1, max_experts) != config.mixture.per_token) {
    root.fail(again,
              fmt::format("the value of num_experts_per_tok ({})", config.mixture.per_token));
  }
}

}  // namespace

void read_mixture(const JsonObject& root, const Family& family, ModelConfig& config) {
  const FamilyMixture& own = family.mixture;
  if (own.experts == 0) return;
  ExpertMixture& mixture = config.mixture;
  if (family.parts_apart && mixture.layers.empty()) return;
  const char* key = experts_key(root, family);
  const std::string switch_key(own.switch_key);
  const std::string per_token_key(own.per_token_key);
  if (!switch_key.empty() && !root.flag(switch_key, false)) return;
  // Those whose layers may all be dense say so.
  const bool may_be_dense = switch_key.empty() && (own.reads_layers || own.shared_is_mlp);
  const auto missing = [&](std::int64_t value) {
    return switch_key.empty() ? std::optional(value) : std::optional<std::int64_t>();
  };
  mixture.experts = root.integer(key, may_be_dense ? 0 : 1, max_experts, missing(own.experts));
  if (mixture.experts == 0) return;
  mixture.per_token = root.integer(per_token_key, 1, max_experts, missing(own.per_token));
  if (mixture.per_token > mixture.experts) {
    root.fail(per_token_key, fmt::format("at most {} ({})", key, mixture.experts));
  }
  const std::string_view width =
      own.intermediate_size > 0 ? own.intermediate_size_key : "intermediate_size";
  mixture.intermediate_size =
      own.intermediate_size > 0 ? root.integer(width, 1, max_width, missing(own.intermediate_size))
                                : config.intermediate_size;
  // All experts together have no more than an MLP may have.
  if (mixture.experts * mixture.intermediate_size > max_width) {
    root.fail(width, fmt::format("{} at most, because {} is {}", max_width / mixture.experts, key,
                                 mixture.experts));
  }
  if (own.shared > 0) {
    mixture.shared_intermediate_size = root.integer(own.shared_size_key, 1, max_width, own.shared);
    mixture.shared_gate = !own.shared_gate.empty();
  }
  if (own.shared_experts > 0) {
    mixture.shared_intermediate_size =
        mixture.intermediate_size * root.integer("n_shared_experts", 0,
                                                 max_width / mixture.intermediate_size,
                                                 own.shared_experts);
  }
  mixture.softmax_over_all = own.reads_softmax && !root.flag("norm_topk_prob", own.norm_topk_prob);
  mixture.biases = own.fused;
  mixture.own_norms = own.own_norms;
  if (own.sigmoid || own.reads_groups) read_choice(root, family, mixture);
  if (family.parts_apart) check_parts_apart(root);
  if (own.reads_layers) mixture.layers = expert_layers(root, config.attention.layers);
  if (own.first_dense >= 0) mixture.layers = layers_after_dense(root, own, config.attention.layers);
  if (std::ranges::none_of(mixture.layers, [](bool has) { return has; }) &&
      !mixture.layers.empty()) {
    mixture = {};
  }
  if (!family.clamped) return;
  check_gpt_oss_keys(root, config);
  config.activation = ModelConfig::Activation::clamped_silu;
  config.swiglu_limit = 7;
}

}  // namespace topkv
