// A trained indexer in a file beside a model (docs/reference/indexer-files.md): projections from
// the input of a layer's attention to index queries, index keys and weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "src/core/math/matrix.h"
#include "src/model/weights/safetensors_file.h"
#include "topkv/model.h"

namespace topkv {

/// The projections of one layer; x is the input of its attention.
struct IndexerLayer {
  Matrix queries;                      // [heads * dim, hidden]; no elements: no indexer
  Matrix keys;                         // [dim, hidden]
  Matrix weights;                      // [heads, hidden]; no elements: all weights are 1
  std::vector<float> norm, norm_bias;  // [dim], LayerNorm of keys; empty: none

  bool empty() const { return queries.out_features == 0; }
};

/// The indexer of a model. Matrices are views into the mapped file.
class IndexerFile {
 public:
  /// The epsilon of the LayerNorm of keys, as in DeepSeek-V3.2.
  static constexpr float norm_epsilon = 1e-6F;

  /// Opens a file, and checks all of it. config: the model's. Throws FileError for a file that is
  /// damaged, no indexer, or an indexer of another model.
  IndexerFile(const std::filesystem::path& path, const ModelConfig& config);

  const IndexerShape& shape() const { return shape_; }
  /// Returns AttentionShape::indexer_layer.
  std::vector<std::int64_t> indexer_layer() const;
  const IndexerLayer& layer(std::int64_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  /// Returns the number of first elements of index queries and index keys that RoPE turns; even.
  std::int64_t rope_dim() const { return rope_dim_; }
  double rope_theta() const { return rope_theta_; }

 private:
  class Reader;

  SafeTensorsFile file_;
  IndexerShape shape_;
  std::int64_t rope_dim_ = 0;
  double rope_theta_ = 0;
  std::vector<IndexerLayer> layers_;  // [layers]
};

}  // namespace topkv
