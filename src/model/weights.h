// The weights of a decoder, by name and shape, as Hugging Face checkpoints of the Llama line name
// them. Matrices stay in the mapped file; the small vectors are widened to float32.
#pragma once

#include <vector>

#include "src/device/compute_device.h"
#include "src/model/safetensors.h"
#include "topkv/model.h"

namespace topkv {

struct LayerWeights {
  std::vector<float> input_norm;  // [hidden]
  Matrix q, k, v, o;
  std::vector<float> q_bias, k_bias, v_bias, o_bias;  // empty: none
  std::vector<float> q_norm, k_norm;                  // [head_dim]; empty: none
  std::vector<float> mlp_norm;                        // [hidden]
  Matrix gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;  // empty: none
};

struct Weights {
  Matrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  Matrix lm_head;  // [vocab, hidden]; the embedding when tied

  /// Views into tensors, which must outlive the weights. Throws FileError naming the tensor.
  static Weights load(const SafeTensors& tensors, const ModelConfig& config);
};

}  // namespace topkv
