// A step of a Mamba-2 layer, as devices take it.
#pragma once

#include <cstdint>

#include "topkv/recurrence.h"

namespace topkv {

// What is taken from files. Devices have the first limit alone.
inline constexpr std::int64_t most_mamba_state_dim = 256;
inline constexpr std::int64_t most_mamba_heads = 4096;
inline constexpr std::int64_t most_mamba_head_dim = 1024;
inline constexpr std::int64_t most_mamba_kernel = 64;

/// Floats that a step of `tokens` tokens works in: what the convolution gives, [tokens,
/// input_width], then decays and dt, [tokens, heads] each.
constexpr std::int64_t mamba2_room(const Mamba2& net, std::int64_t tokens) {
  return tokens * (net.input_width() + 2 * net.heads);
}

/// A Mamba-2 layer over consecutive tokens of one text, up to y. All are float32 in the device's
/// memory.
struct Mamba2Step {
  std::int64_t tokens = 1;
  const float* xbc = nullptr;  ///< [tokens, input_width], as the projection gives them
  const float* dt = nullptr;   ///< [tokens, heads]: dt is softplus(this + time_bias)
  const float* kernel =
      nullptr;                  ///< weights of the convolution, [kernel, input_width], oldest first
  const float* bias = nullptr;  ///< of the convolution, [input_width]; null: none
  const float* fading = nullptr;     ///< A, [heads], below 0
  const float* time_bias = nullptr;  ///< [heads]
  const float* skip = nullptr;       ///< D, [heads]
  const float* state = nullptr;      ///< before the tokens; null: there is no earlier token
  float* next_state = nullptr;       ///< after them; not `state`
  /// Null, or where these two pointers stand in the device's memory: for one token, whose step is
  /// recorded.
  const float* const* states = nullptr;
  float* room = nullptr;  ///< mamba2_room(net, tokens) floats
  float* out = nullptr;   ///< y, [tokens, heads, head_dim]
};

}  // namespace topkv
