// Which bias the keys of a model have (ContextOptions::key_bias).
#pragma once

#include <vector>

#include "src/model/weights/checkpoint.h"
#include "topkv/model.h"

namespace topkv {

/// Whether the model's keys have a bias that key_bias_of does not know: a norm comes behind it, so
/// that it is another one for each token.
inline bool has_unknown_key_bias(const ModelConfig& config) {
  return config.qkv_bias && config.qk_norm;
}

/// The biases of the K projections of all layers, as ContextOptions::key_bias has them; empty: the
/// model has none, all of them are 0, or a norm comes behind them. Throws as Checkpoint::vector
/// does.
std::vector<float> key_bias_of(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace topkv
