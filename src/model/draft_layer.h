// A model's own layer that drafts tokens (multi-token prediction).
#pragma once

#include <cstdint>
#include <memory>

#include "src/model/network/forward_pool.h"
#include "src/model/weights/weights.h"
#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/model.h"

namespace topkv {

/// The layer behind a model's last one that was trained to say a token more (DeepSeek-V3, arXiv
/// 2412.19437, section 2.2, equations 21 to 23). It reads the hidden state h_i of token i and the
/// embedding of token i + 1, and gives logits of token i + 2:
///
///     x_i = W [norm(embedding of token i + 1); norm(h_i)], one decoder layer over x, norm, head.
///
/// To draft further tokens it reads its own hidden state in place of h. Both are taken behind the
/// last norm, the model's and the layer's. The report leaves that open. vLLM's models return such
/// states to qwen3_next_mtp.py, deepseek_mtp.py and glm4_moe_lite_mtp.py. In llama.cpp, Qwen3.5's
/// layer drafts better with them (pull request 24025), and in vLLM GLM's does so with its own
/// states (pull request 47448).
///
/// Its rows have positions of their own, from 0 on: RoPE depends on differences of positions alone.
///
/// Threads: safe from many threads.
struct DraftLayer {
  /// The most tokens of a session's end whose hidden states are kept. When there are more, the
  /// first half is dropped. They know the text before them already, and the layer runs over all of
  /// them before its first draft: with more of them, a short answer would wait for that.
  static constexpr std::int64_t most_window = 256;

  /// The checkpoint outlives the layer, and so do the weights of the model. REQUIRES:
  /// Weights::has_draft_layer. Throws as Weights::load does.
  DraftLayer(const Checkpoint& from, const ModelConfig& model, const Weights& of_model,
             const Device& on, WeightFormat format);
  DraftLayer(const DraftLayer&) = delete;  // passes refer to it
  DraftLayer& operator=(const DraftLayer&) = delete;

  /// Returns the host memory of one session's hidden states and rows, in bytes.
  std::int64_t session_bytes() const { return session_bytes_of(config); }
  static std::int64_t session_bytes_of(const ModelConfig& config);
  /// Returns the most tokens whose hidden states are kept. It never exceeds the model's reach.
  static std::int64_t window_of(const ModelConfig& config);

  Device device;
  ModelConfig config;
  Weights weights;
  std::int64_t window;
  std::shared_ptr<const Context> nothing;  // a context without tokens, for all sessions
  mutable ForwardPool forwards;
};

}  // namespace topkv
