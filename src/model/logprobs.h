// What the model gave for a token, beside the one that was chosen.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "topkv/generate.h"

namespace topkv {

/// Log-probabilities by the softmax of finite logits, in float64: of the chosen token, and of the
/// `count` likeliest (fewer where there are fewer logits).
TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int64_t count);

}  // namespace topkv
