// Multi-head latent attention.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

constexpr std::int64_t most_rank = std::int64_t{1} << 16;
constexpr std::int64_t most_dim = 4096;

/// transformers has this number under a second name.
void check_again(const JsonObject& root, const char* key, const char* name, std::int64_t value) {
  if (root.find(key) == nullptr || root.integer(key, 1, most_rank) == value) return;
  root.fail(key, fmt::format("the value of {} ({})", name, value));
}

}  // namespace

void read_latent(const JsonObject& root, const Family& family, ModelConfig& config) {
  LatentAttention& latent = config.latent;
  const LatentAttention& missing = family.latent;
  latent.kv_rank = root.integer("kv_lora_rank", 1, most_rank, missing.kv_rank);
  constexpr const char* q_rank = "q_lora_rank";
  if (!root.contains(q_rank)) {
    latent.q_rank = missing.q_rank;
  } else if (root.find(q_rank) != nullptr) {  // null: queries are projected at once
    latent.q_rank = root.integer(q_rank, 1, most_rank);
  }
  latent.nope_dim = root.integer("qk_nope_head_dim", 1, most_dim, missing.nope_dim);
  latent.rope_dim = root.integer("qk_rope_head_dim", 2, most_dim, missing.rope_dim);
  latent.value_dim = root.integer("v_head_dim", 1, most_dim, missing.value_dim);
  if (latent.rope_dim % 2 != 0)
    root.fail("qk_rope_head_dim", "an even number, because RoPE rotates pairs");
  check_again(root, "head_dim", "qk_rope_head_dim", latent.rope_dim);
  check_again(root, "qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim", latent.query_dim());
  if (config.attention.kv_heads != config.attention.q_heads) {
    root.fail(
        "num_key_value_heads",
        fmt::format("the value of num_attention_heads ({}), because all heads share one latent",
                    config.attention.q_heads));
  }
  config.attention.head_dim = latent.rope_dim;  // what RoPE is read for
  config.attention.scale =
      static_cast<float>(1 / std::sqrt(static_cast<double>(latent.query_dim())));
}

void scale_latent(const JsonObject& rope, ModelConfig& config) {
  constexpr const char* key = "mscale_all_dim";
  if (config.latent.kv_rank == 0 || rope.find(key) == nullptr) return;
  const double factor = config.rope_scaling.factor;
  const double all = rope.number(key, 0, 1e9);
  const double scale = all == 0 || factor <= 1 ? 1 : 0.1 * all * std::log(factor) + 1;
  config.attention.scale = static_cast<float>(config.attention.scale * scale * scale);
}

void settle_latent(const JsonObject& root, const Family& family, ModelConfig& config) {
  if (config.dual_chunk.chunk_size > 0)
    root.unsupported("dual_chunk_attention_config", "models without latent attention");
  if (std::ranges::find(family.own_keys, "rope_interleave") != family.own_keys.end())
    config.rope_interleaved = root.flag("rope_interleave", true);
  if (root.find("mlp_bias") != nullptr && root.flag("mlp_bias"))
    root.unsupported("mlp_bias", "MLPs without biases there");
  AttentionShape& shape = config.attention;
  shape.kv_heads = 1;
  shape.head_dim = config.latent.kv_rank + config.latent.rope_dim;
  shape.keys_are_values = true;
}

}  // namespace topkv
