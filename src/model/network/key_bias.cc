#include "src/model/network/key_bias.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/model/network/rope.h"

namespace topkv {
namespace {

/// What RoPE makes of the bias of one head, [3, dim].
void turn_head(const ModelConfig& config, const float* bias, const RopeTable* rope, float* out) {
  const std::int64_t dim = config.attention.head_dim;
  std::copy(bias, bias + dim, out);
  std::fill(out + dim, out + 3 * dim, 0.0F);
  if (rope == nullptr) return;
  const float factor = rope->attention_factor();
  const std::int64_t half = config.rotary_dim / 2;
  for (std::int64_t pair = 0; pair < half; ++pair) {
    const std::int64_t a = config.rope_interleaved ? 2 * pair : pair;
    const std::int64_t b = config.rope_interleaved ? 2 * pair + 1 : pair + half;
    out[a] = bias[a] * factor;
    out[b] = bias[b] * factor;
    out[dim + a] = -bias[b] * factor;
    out[dim + b] = bias[a] * factor;
    out[2 * dim + a] = out[2 * dim + b] = rope->frequencies()[static_cast<std::size_t>(pair)];
  }
}

}  // namespace

std::vector<float> key_bias_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (!config.qkv_bias || config.qk_norm || config.latent.kv_rank > 0) return {};
  const AttentionShape& shape = config.attention;
  const RopeTable of_model = RopeTable::of_model(config);
  const RopeTable of_sliding = RopeTable::of_sliding(config);
  const std::int64_t dim = shape.head_dim;
  std::vector<float> bias(static_cast<std::size_t>(shape.kv_heads * dim));
  std::vector<float> all(static_cast<std::size_t>(shape.layers) * bias.size() * 3);
  bool any = false;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    checkpoint.vector(fmt::format("model.layers.{}.self_attn.k_proj.bias", l), bias);
    any = any || std::ranges::any_of(bias, [](float x) { return x != 0; });
    const LayerRope which = config.rope_of(l);
    const RopeTable* rope = which == LayerRope::none      ? nullptr
                            : which == LayerRope::sliding ? &of_sliding
                                                          : &of_model;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h)
      turn_head(config, bias.data() + h * dim, rope,
                all.data() + (l * shape.kv_heads + h) * 3 * dim);
  }
  return any ? all : std::vector<float>();
}

}  // namespace topkv
