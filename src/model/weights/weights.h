// The weights of a decoder, by name and shape. On the host matrices stay in the mapped file, unless
// they are packed; on another device they are copied to it. The small vectors are widened to
// float32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/math/matrix.h"
#include "src/device/compute_device.h"
#include "src/model/weights/checkpoint.h"
#include "src/model/weights/indexer_file.h"
#include "topkv/model.h"

namespace topkv {

/// float32 values in a device's memory; not owned.
struct Vector {
  const float* data = nullptr;
  std::int64_t size = 0;

  bool empty() const { return size == 0; }
};

/// In place of an MLP.
struct MixtureWeights {
  Matrix router;                  // [experts, hidden], never rounded
  Vector router_bias;             // [experts]; empty: none, as below
  ExpertMatrices gate, up, down;  // of each expert; gate: ModelConfig::has_mlp_gate
  Vector gate_biases, up_biases;  // [experts, width of an expert]
  Vector down_biases;             // [experts, hidden]
  // With ExpertMixture::own_norms. [hidden]: what the router reads, with its factors; what the
  // experts read and give; what the MLP gives. [experts]: factors of the weights of experts.
  Vector router_norm, input_norm, output_norm, mlp_output_norm, expert_scales;
  Vector choice_bias;  // [experts], ExpertMixture::choice_bias; empty: none
  // Of the expert that all tokens share, which has a gate if the others have one. shared_weight:
  // [1, hidden], never rounded; no elements: ExpertMixture::shared_gate is false.
  Matrix shared_weight, shared_gate, shared_up, shared_down;

  bool empty() const { return up.data.empty(); }
};

/// In place of attention.
struct DeltaWeights {
  Matrix qkv, z, out;        // [qkv_width, hidden], [value_width, hidden], [hidden, value_width]
  Matrix gates;              // [2 value_heads, hidden], never rounded: those of GatedDeltaStep
  Vector kernel;             // [kernel, qkv_width]
  Vector fading, time_bias;  // [value_heads]
  Vector norm;               // [value_dim]

  bool empty() const { return kernel.empty(); }
};

/// In place of attention.
struct MambaWeights {
  Matrix z, xbc, out;              // [width, hidden], [input_width, hidden], [hidden, width]
  Matrix dt;                       // [heads, hidden], never rounded
  Vector kernel;                   // [kernel, input_width]
  Vector bias;                     // [input_width]; empty: none
  Vector fading, time_bias, skip;  // [heads]
  Vector norm;                     // [width]

  bool empty() const { return kernel.empty(); }
};

/// In place of attention.
struct ConvolutionWeights {
  Matrix in, out;  // [input_width, hidden], [hidden, width]
  Vector kernel;   // [kernel, width]

  bool empty() const { return kernel.empty(); }
};

/// In place of the projections to q, k and v (LatentAttention).
struct LatentWeights {
  Matrix q_latent;                         // [q_rank, hidden]; no elements: there is none
  Vector q_latent_bias, q_norm;            // [q_rank]; empty: none
  Matrix q;                                // [q_heads * query_dim, q_rank or hidden]
  Matrix latent, rope_key;                 // [kv_rank, hidden], [rope_dim, hidden]
  Vector latent_bias, rope_bias, kv_norm;  // [kv_rank], [rope_dim], [kv_rank]; biases empty: none
  ExpertMatrices keys;                     // of each head: [kv_rank, nope_dim]
  ExpertMatrices values;                   // of each head: [value_dim, kv_rank]

  bool empty() const { return kv_norm.empty(); }
};

struct LayerWeights {
  // [hidden]; empty: none. What attention and MLP read, and what they give.
  Vector input_norm, attention_norm, mlp_norm, mlp_output_norm;
  // Of recurrent layers one is not empty. Else the layer has the attention that follows.
  DeltaWeights delta;
  MambaWeights mamba;
  ConvolutionWeights convolution;
  LatentWeights latent;                   // empty: the layer has the q, k and v that follow
  Matrix q, k, v, o;                      // q: with ModelConfig::output_gate twice as wide
  Vector q_bias, k_bias, v_bias, o_bias;  // empty: none
  Vector q_norm, k_norm;                  // [head_dim], or the width of q and of k; empty: none
  Vector sinks;                           // [q_heads], ModelConfig::attention_sinks; empty: none
  MixtureWeights mixture;                 // empty: none. Then, or beside it, there is an MLP:
  Matrix gate, up, down;
  Vector gate_bias, up_bias, down_bias;  // empty: none
  // Of ModelConfig::layer_inputs: [size, hidden], [size, hidden], [hidden, size] and [hidden].
  Matrix input_projection, input_gate, input_output;
  Vector input_output_norm;
  float scale = 1;  // of the residual behind the layer
};

/// What a draft layer makes its input of (ModelConfig::draft_layer).
struct DraftInputWeights {
  Vector embedding_norm, state_norm;  // [hidden]: of a token, and of the hidden state before it
  Matrix projection;                  // [hidden, 2 * hidden] of both, the embedding first
};

struct WeightsSize {
  std::int64_t device = 0;     ///< bytes of device memory that they take
  std::int64_t held = 0;       ///< bytes in the format asked for; if stored, as in the checkpoint
  bool packed = false;         ///< whether the device is to prepare_packed
  std::int64_t embedding = 0;  ///< of held, the embedding's
  std::int64_t idle = 0;       ///< of held, the experts' that a token does not go through

  /// Returns the bytes that a token reads. tied: the embedding is the head, too.
  std::int64_t reads(bool tied) const { return held - idle - (tied ? 0 : embedding); }
};

struct Weights {
  Matrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Vector final_norm;
  Vector ones;               // [widest head] of ModelConfig::value_norm: the norm has no weights
  Matrix layer_inputs;       // [vocab * layers, size]: row t * layers + l is of token t for layer l
  Vector layer_inputs_norm;  // [size]
  Matrix lm_head;            // [vocab, hidden]; the embedding when tied
  DraftInputWeights draft;   // with ModelConfig::draft_layer
  Buffer storage;            // what is not in the mapped file
  std::shared_ptr<const IndexerFile> indexer;  // a trained indexer; null: none

  /// Views into the checkpoint, which must outlive the weights, or copies in the device's memory.
  /// What is packed goes there tensor by tensor, in pieces: the host holds one piece beside.
  /// Throws FileError naming the tensor, Unsupported for one that the format cannot hold and for a
  /// format that rounds what is quantised already, OutOfMemory.
  static Weights load(const Checkpoint& from, const ModelConfig& config, ComputeDevice& device,
                      const LoadOptions& options);

  /// Without loading. Throws as load does.
  static WeightsSize size(const Checkpoint& from, const ModelConfig& config,
                          const DeviceSizes& device, WeightFormat format);

  /// Returns whether a model's draft layer is there, by names that topkv knows. config: the
  /// model's.
  static bool has_draft_layer(const Checkpoint& from, const ModelConfig& config);
  /// Loads a model's draft layer (draft_layer_config). Embedding and output layer are those
  /// of the model's weights, which outlive it. REQUIRES: has_draft_layer.
  static Weights load_draft_layer(const Checkpoint& from, const ModelConfig& config,
                                  const Weights& model, ComputeDevice& device, WeightFormat format);
  /// Without loading, and without what it shares with the model. Throws as load does.
  static WeightsSize draft_layer_size(const Checkpoint& from, const ModelConfig& config,
                                      const DeviceSizes& device, WeightFormat format);

  /// Sets config.tied_embeddings to what the file has: an output layer that differs from the
  /// embedding it is said to be tied to is one of its own. Returns what to tell of that, else
  /// nothing. Reads both when both are there.
  static std::string settle_tie(const Checkpoint& from, ModelConfig& config);
};

}  // namespace topkv
