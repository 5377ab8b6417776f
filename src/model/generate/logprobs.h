// What the model gave for a token, beside the one that was chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/generate.h"

namespace topkv {

/// Log-probabilities by the softmax of finite logits, in float64: of the chosen token, and of the
/// `count` likeliest (fewer where there are fewer logits).
TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int64_t count);

/// Of each of several tokens by its own row of logits [chosen.size(), vocabulary], added to `into`.
void append_logprobs(std::span<const float> logits, std::span<const Token> chosen,
                     std::int64_t count, std::vector<TokenLogprobs>& into);

}  // namespace topkv
