#include "src/model/weights.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "src/core/convert.h"

namespace topkv {

Weights Weights::load(const SafeTensors& tensors, const ModelConfig& config) {
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    const std::array<std::int64_t, 2> shape = {out, in};
    const SafeTensors::Tensor tensor = tensors.get(name, shape);
    return Matrix{tensor.data, tensor.dtype, out, in};
  };
  const auto vector = [&](const std::string& name, std::int64_t size) {
    const std::array<std::int64_t, 1> shape = {size};
    const SafeTensors::Tensor tensor = tensors.get(name, shape);
    std::vector<float> values(static_cast<std::size_t>(size));
    to_float(tensor.data, tensor.dtype, size, values.data());
    return values;
  };
  const auto optional_vector = [&](bool wanted, const std::string& name, std::int64_t size) {
    return wanted ? vector(name, size) : std::vector<float>();
  };

  const std::int64_t hidden = config.hidden_size;
  const std::int64_t mlp = config.intermediate_size;
  const std::int64_t head = config.attention.head_dim;
  const std::int64_t q_size = config.attention.q_heads * head;
  const std::int64_t kv_size = config.attention.kv_heads * head;

  Weights weights;
  weights.embedding = matrix("model.embed_tokens.weight", config.vocab_size, hidden);
  for (std::int64_t l = 0; l < config.attention.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    const std::string attn = at + "self_attn.";
    LayerWeights layer;
    layer.input_norm = vector(at + "input_layernorm.weight", hidden);
    layer.q = matrix(attn + "q_proj.weight", q_size, hidden);
    layer.k = matrix(attn + "k_proj.weight", kv_size, hidden);
    layer.v = matrix(attn + "v_proj.weight", kv_size, hidden);
    layer.o = matrix(attn + "o_proj.weight", hidden, q_size);
    layer.q_bias = optional_vector(config.qkv_bias, attn + "q_proj.bias", q_size);
    layer.k_bias = optional_vector(config.qkv_bias, attn + "k_proj.bias", kv_size);
    layer.v_bias = optional_vector(config.qkv_bias, attn + "v_proj.bias", kv_size);
    layer.o_bias = optional_vector(config.o_bias, attn + "o_proj.bias", hidden);
    layer.q_norm = optional_vector(config.qk_norm, attn + "q_norm.weight", head);
    layer.k_norm = optional_vector(config.qk_norm, attn + "k_norm.weight", head);
    layer.mlp_norm = vector(at + "post_attention_layernorm.weight", hidden);
    layer.gate = matrix(at + "mlp.gate_proj.weight", mlp, hidden);
    layer.up = matrix(at + "mlp.up_proj.weight", mlp, hidden);
    layer.down = matrix(at + "mlp.down_proj.weight", hidden, mlp);
    layer.gate_bias = optional_vector(config.mlp_bias, at + "mlp.gate_proj.bias", mlp);
    layer.up_bias = optional_vector(config.mlp_bias, at + "mlp.up_proj.bias", mlp);
    layer.down_bias = optional_vector(config.mlp_bias, at + "mlp.down_proj.bias", hidden);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = vector("model.norm.weight", hidden);
  weights.lm_head = config.tied_embeddings ? weights.embedding
                                           : matrix("lm_head.weight", config.vocab_size, hidden);
  return weights;
}

}  // namespace topkv
