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
  constexpr const char* name = "num_experts";
  constexpr const char* other = "num_local_experts";
  const auto& own = family.own_keys;
  const bool has_name = std::ranges::find(own, name) != own.end();
  if (has_name && !family.mixture.switch_key.empty()) return name;  // which has one name alone
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
  const char* key = experts_key(root, family);
  const std::string switch_key(own.switch_key);
  const std::string per_token_key(own.per_token_key);
  if (!switch_key.empty() && !root.flag(switch_key, false)) return;
  // Those whose layers may all be dense say so.
  const bool may_be_dense = switch_key.empty() && (own.reads_layers || own.beside_mlp);
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
    mixture.shared_intermediate_size =
        root.integer("shared_expert_intermediate_size", 1, max_width, own.shared);
  }
  mixture.softmax_over_all = own.reads_softmax && !root.flag("norm_topk_prob", own.norm_topk_prob);
  mixture.biases = own.fused;
  mixture.beside_mlp = own.beside_mlp;
  mixture.own_norms = own.own_norms;
  if (own.reads_layers) mixture.layers = expert_layers(root, config.attention.layers);
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
