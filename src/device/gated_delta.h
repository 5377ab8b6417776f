// A step of a Gated DeltaNet layer, as devices take it.
#pragma once

#include <cstdint>

#include "src/core/math/matrix.h"
#include "topkv/recurrence.h"

namespace topkv {

// What is taken from files. Devices have the first limit alone.
inline constexpr std::int64_t most_delta_key_dim = 256;
inline constexpr std::int64_t most_delta_value_dim = 1024;
inline constexpr std::int64_t most_delta_heads = 4096;
inline constexpr std::int64_t most_delta_kernel = 64;
inline constexpr float delta_norm_epsilon = 1e-6F;  // of q and k

/// Floats that a step of `tokens` tokens works in: what the convolution gives, [tokens, qkv_width],
/// then decays and learning rates, [tokens, value_heads] each.
constexpr std::int64_t gated_delta_room(const GatedDeltaNet& net, std::int64_t tokens) {
  return tokens * (net.qkv_width() + 2 * net.value_heads);
}

/// A Gated DeltaNet layer over consecutive tokens of one text. All are float32 in the device's
/// memory.
struct GatedDeltaStep {
  std::int64_t tokens = 1;
  const float* qkv = nullptr;  ///< [tokens, qkv_width], as the projection gives them
  /// [tokens, 2, value_heads]: for each head what the learning rate is a sigmoid of, then, for each
  /// head, x of the decay.
  const float* gates = nullptr;
  const float* kernel = nullptr;  ///< weights of the convolution, [kernel, qkv_width], oldest first
  /// [value_heads], below 0. The decay is e^(fading softplus(x + time_bias)).
  const float* fading = nullptr;
  const float* time_bias = nullptr;  ///< [value_heads]
  const float* state = nullptr;      ///< before the tokens; null: there is no earlier token
  float* next_state = nullptr;       ///< after them; not `state`
  /// Null, or where these two pointers stand in the device's memory: for one token, whose step is
  /// recorded.
  const float* const* states = nullptr;
  float* room = nullptr;  ///< gated_delta_room(net, tokens) floats
  float* out = nullptr;   ///< [tokens, value_heads, value_dim]
};

/// All that such a layer does with one token between its projections, for a step that is recorded.
struct GatedDeltaToken {
  /// Of one token. gates, state and next_state are not read. `states`, and what they point to, are
  /// in place before the recording runs.
  GatedDeltaStep step;
  const Matrix* gate_weights = nullptr;  ///< [2 value_heads, hidden size]
  const std::byte* x = nullptr;          ///< operand [hidden size], which meets gate_weights
  float* gates = nullptr;                ///< room for GatedDeltaStep::gates
  const float* z = nullptr;              ///< [value_heads, value_dim]
  const float* norm = nullptr;           ///< [value_dim]
  float epsilon = 0;
  /// Receives the operand [value_heads, value_dim]: RMSNorm of each head's output, times silu(z).
  std::byte* out = nullptr;
};

}  // namespace topkv
