#include "src/model/weights.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "src/core/convert.h"
#include "src/device/pieces.h"

namespace topkv {
namespace {

/// Lays weights out behind each other and, when there is storage, puts them there.
class Placer {
 public:
  Placer(const SafeTensors& tensors, const ComputeDevice& measure)
      : tensors_(tensors), measure_(measure) {}
  Placer(const SafeTensors& tensors, ComputeDevice& device, std::byte* storage)
      : tensors_(tensors), measure_(device), device_(&device), storage_(storage) {}

  std::int64_t used() const { return pieces_.used(); }

  Matrix matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    const std::array<std::int64_t, 2> shape = {out, in};
    const SafeTensors::Tensor tensor = tensors_.get(name, shape);
    const Matrix host{tensor.data, tensor.dtype, out, in};
    const std::int64_t at = pieces_.place(measure_.upload_bytes(host));
    return device_ == nullptr ? host : device_->upload(host, storage_ + at);
  }

  Vector vector(const std::string& name, std::int64_t size) {
    const std::array<std::int64_t, 1> shape = {size};
    const SafeTensors::Tensor tensor = tensors_.get(name, shape);
    const std::int64_t bytes = size * bytes_of(DType::f32);
    const std::int64_t at = pieces_.place(bytes);
    if (device_ == nullptr) return {nullptr, size};
    values_.resize(static_cast<std::size_t>(size));
    to_float(tensor.data, tensor.dtype, size, values_.data());
    device_->copy_in(values_.data(), bytes, storage_ + at);
    return {reinterpret_cast<const float*>(storage_ + at), size};
  }

 private:
  const SafeTensors& tensors_;
  const ComputeDevice& measure_;
  ComputeDevice* device_ = nullptr;  // null: only measure
  std::byte* storage_ = nullptr;
  Pieces pieces_;
  std::vector<float> values_;
};

Weights place(Placer& placer, const ModelConfig& config) {
  const auto optional_vector = [&](bool wanted, const std::string& name, std::int64_t size) {
    return wanted ? placer.vector(name, size) : Vector();
  };

  const std::int64_t hidden = config.hidden_size;
  const std::int64_t mlp = config.intermediate_size;
  const std::int64_t head = config.attention.head_dim;
  const std::int64_t q_size = config.attention.q_heads * head;
  const std::int64_t kv_size = config.attention.kv_heads * head;

  Weights weights;
  weights.embedding = placer.matrix("model.embed_tokens.weight", config.vocab_size, hidden);
  for (std::int64_t l = 0; l < config.attention.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    const std::string attn = at + "self_attn.";
    LayerWeights layer;
    layer.input_norm = placer.vector(at + "input_layernorm.weight", hidden);
    layer.q = placer.matrix(attn + "q_proj.weight", q_size, hidden);
    layer.k = placer.matrix(attn + "k_proj.weight", kv_size, hidden);
    layer.v = placer.matrix(attn + "v_proj.weight", kv_size, hidden);
    layer.o = placer.matrix(attn + "o_proj.weight", hidden, q_size);
    layer.q_bias = optional_vector(config.qkv_bias, attn + "q_proj.bias", q_size);
    layer.k_bias = optional_vector(config.qkv_bias, attn + "k_proj.bias", kv_size);
    layer.v_bias = optional_vector(config.qkv_bias, attn + "v_proj.bias", kv_size);
    layer.o_bias = optional_vector(config.o_bias, attn + "o_proj.bias", hidden);
    layer.q_norm = optional_vector(config.qk_norm, attn + "q_norm.weight", head);
    layer.k_norm = optional_vector(config.qk_norm, attn + "k_norm.weight", head);
    layer.mlp_norm = placer.vector(at + "post_attention_layernorm.weight", hidden);
    layer.gate = placer.matrix(at + "mlp.gate_proj.weight", mlp, hidden);
    layer.up = placer.matrix(at + "mlp.up_proj.weight", mlp, hidden);
    layer.down = placer.matrix(at + "mlp.down_proj.weight", hidden, mlp);
    layer.gate_bias = optional_vector(config.mlp_bias, at + "mlp.gate_proj.bias", mlp);
    layer.up_bias = optional_vector(config.mlp_bias, at + "mlp.up_proj.bias", mlp);
    layer.down_bias = optional_vector(config.mlp_bias, at + "mlp.down_proj.bias", hidden);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = placer.vector("model.norm.weight", hidden);
  weights.lm_head = config.tied_embeddings
                        ? weights.embedding
                        : placer.matrix("lm_head.weight", config.vocab_size, hidden);
  return weights;
}

}  // namespace

std::int64_t Weights::bytes(const SafeTensors& tensors, const ModelConfig& config,
                            const ComputeDevice& device) {
  Placer placer(tensors, device);
  place(placer, config);
  return placer.used();
}

Weights Weights::load(const SafeTensors& tensors, const ModelConfig& config,
                      ComputeDevice& device) {
  Buffer storage = device.allocate(bytes(tensors, config, device), "weights");
  Placer placer(tensors, device, storage.data());
  Weights weights = place(placer, config);
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace topkv
