// What a short convolution of a recurrent layer sees on the host.
#pragma once

#include <cstdint>
#include <vector>

namespace topkv {

/// The inputs of the convolution for the tokens before a step, then those of the step.
class ConvolvedInputs {
 public:
  /// given: [tokens, width] of the step. state: of the `before` tokens before them, [before,
  /// width]; null: zeros.
  ConvolvedInputs(const float* given, const float* state, std::int64_t width, std::int64_t before)
      : given_(given), state_(state), width_(width), before_(before) {
    if (state == nullptr) nothing_.resize(static_cast<std::size_t>(width));
  }

  /// token: from -before on.
  const float* of(std::int64_t token) const {
    if (token >= 0) return given_ + token * width_;
    return state_ == nullptr ? nothing_.data() : state_ + (before_ + token) * width_;
  }

 private:
  const float* given_;
  const float* state_;
  std::int64_t width_, before_;
  std::vector<float> nothing_;
};

}  // namespace topkv
