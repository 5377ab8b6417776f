// What logits say of the token that came.
#pragma once

#include <span>
#include <vector>

namespace topkv {

/// log softmax of one token's logits, in float64.
std::vector<double> log_probabilities(std::span<const float> logits);

}  // namespace topkv
