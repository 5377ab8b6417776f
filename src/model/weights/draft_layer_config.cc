#include "src/model/weights/draft_layer_config.h"

namespace topkv {

ModelConfig draft_layer_config(const ModelConfig& model) {
  ModelConfig config = model;
  AttentionShape& shape = config.attention;
  shape.layers = 1;
  shape.sliding_window.clear();
  shape.row_layer.clear();
  shape.state_size.clear();
  shape.indexer.reset();
  shape.indexer_layer.clear();
  config.delta = {};
  config.mixture.layers.clear();
  config.stored_layers.clear();
  config.layer_rope.clear();
  config.draft_layer = true;
  return config;
}

}  // namespace topkv
