// The network of a layer that drafts tokens.
#pragma once

#include "topkv/model.h"

namespace topkv {

/// Returns the configuration of the draft layer of a model: one layer of attention over all tokens,
/// with the mixture of experts that the model has, if any. model: the model's configuration.
ModelConfig draft_layer_config(const ModelConfig& model);

}  // namespace topkv
