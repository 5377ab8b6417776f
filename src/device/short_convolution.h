// A step of a short convolution layer, as devices take it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/recurrence.h"

namespace topkv {

/// A short convolution layer over consecutive tokens of one text, in the device's memory. All are
/// float32, but for `out`.
struct ShortConvolutionStep {
  std::int64_t tokens = 1;
  const float* bcx = nullptr;     ///< [tokens, input_width], as the projection gives them
  const float* kernel = nullptr;  ///< weights of the convolution, [kernel, width], oldest first
  const float* state = nullptr;   ///< before the tokens; null: there is no earlier token
  float* next_state = nullptr;    ///< after them; not `state`
  /// Null, or where these two pointers stand in the device's memory: for one token, whose step is
  /// recorded.
  const float* const* states = nullptr;
  std::byte* out = nullptr;  ///< operand [tokens, width]
};

}  // namespace topkv
