// Index queries, index keys and weights of a trained indexer (IndexerFile).
#include <cmath>

#include "src/model/network/forward.h"

namespace topkv {
namespace {

/// LayerNorm of each row, in place (Ba et al. 2016, eq. 3). The sums are in double and in order.
void layer_norm(const IndexerLayer& layer, std::int64_t rows, float* x) {
  const auto width = std::ssize(layer.norm);
  for (std::int64_t row = 0; row < rows; ++row, x += width) {
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(width);
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double variance = squares / static_cast<double>(width);
    const double factor = 1 / std::sqrt(variance + double{IndexerFile::norm_epsilon});
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      x[i] = static_cast<float>((x[i] - mean) * factor) * layer.norm[at] + layer.norm_bias[at];
    }
  }
}

}  // namespace

void Forward::place_index_angles(std::span<const std::int64_t> positions) {
  if (weights_.indexer == nullptr || weights_.indexer->rope_dim() == 0) return;
  index_angles_ = index_rope_.angles(positions);
  index_angles_.rotary_dim = weights_.indexer->rope_dim();
}

// On the host alone, whose memory is the device's.
void Forward::index_inputs(std::int64_t l, std::int64_t tokens) {
  if (weights_.indexer == nullptr) return;
  const IndexerLayer& layer = weights_.indexer->layer(l);
  if (layer.empty()) return;
  const IndexerShape& shape = weights_.indexer->shape();
  project({{layer.queries, nullptr, a_.index_q}, {layer.keys, nullptr, a_.index_k}}, a_.hidden,
          tokens);
  if (layer.weights.out_features > 0)
    project({{layer.weights, nullptr, a_.index_weights}}, a_.hidden, tokens);
  begin(Phase::other);
  if (!layer.norm.empty()) layer_norm(layer, tokens, a_.index_k);
  if (weights_.indexer->rope_dim() == 0) return;
  device_->rope(index_angles_, tokens, shape.heads, shape.dim, a_.index_q);
  device_->rope(index_angles_, tokens, 1, shape.dim, a_.index_k);
}

void Forward::give_index_inputs(AttentionStep& step) const {
  if (weights_.indexer == nullptr) return;
  const IndexerLayer& layer = weights_.indexer->layer(step.layer);
  step.index_q = layer.empty() ? nullptr : a_.index_q;
  step.index_k = layer.empty() ? nullptr : a_.index_k;
  step.index_weights = layer.weights.out_features == 0 ? nullptr : a_.index_weights;
}

}  // namespace topkv
