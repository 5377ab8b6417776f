// The forward pass of a Llama-line decoder, written once for prefill, sessions and every device.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/device/compute_device.h"
#include "src/model/rope.h"
#include "src/model/weights.h"
#include "topkv/model.h"

namespace topkv {

/// Attention of the next tokens of one layer: takes q, k, v (post-RoPE), keeps k and v, and writes
/// attention over everything it lets each token see. q, out: [tokens, q_heads, head_dim];
/// k, v: [tokens, kv_heads, head_dim].
using AttendFn = std::function<void(std::int64_t layer, const float* q, const float* k,
                                    const float* v, float* out, std::int64_t tokens)>;

/// Runs tokens through the network, chunk by chunk. Owns the activations of one chunk. One thread
/// at a time; weights and device outlive it.
class Forward {
 public:
  Forward(const ModelConfig& config, const Weights& weights, const ComputeDevice& device);

  /// The final hidden states [tokens, hidden], normalised, of tokens at positions first and on;
  /// valid until the next call. REQUIRES: tokens within the vocabulary.
  const float* run(std::span<const Token> tokens, std::int64_t first, const AttendFn& attend);

  /// Logits [rows, vocab] of hidden states [rows, hidden].
  void logits(const float* hidden, std::int64_t rows, float* out);

  /// Seconds so far. attention includes what attend spent searching.
  const ForwardTimes& times() const { return times_; }

 private:
  void layer(std::int64_t l, std::int64_t tokens, const RopeAngles& angles, const AttendFn& attend);
  void project(const Matrix& weight, const std::vector<float>& bias, const float* x,
               std::int64_t tokens, std::vector<float>& out, bool accumulate = false);

  const ModelConfig& config_;
  const Weights& weights_;
  const ComputeDevice& device_;
  RopeTable rope_;
  std::vector<float> x_, normed_, q_, k_, v_, attended_, gate_, up_;
  ForwardTimes times_;
};

}  // namespace topkv
