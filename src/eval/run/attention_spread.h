// How widely dense attention spreads over a context, layer by layer (Synk et al. 2025, figures 3
// and 4): the keys that it takes for three quarters of the softmax weight, and the weights'
// entropy.
#pragma once

#include <cstdint>
#include <vector>

#include "topkv/context.h"

namespace topkv {

struct LayerSpread {
  double keys = 0;         ///< for 75 % of the weight, summed over heads
  double entropy = 0;      ///< natural log, likewise
  std::int64_t heads = 0;  ///< that are summed up

  double mean_keys() const { return heads > 0 ? keys / static_cast<double>(heads) : 0; }
  double mean_entropy() const { return heads > 0 ? entropy / static_cast<double>(heads) : 0; }
};

/// Adds one token's heads. queries: [q_heads, head_dim], in host memory, over all rows of the
/// context's layer.
void add_spread(const Context& context, std::int64_t layer, const float* queries, LayerSpread& to);

}  // namespace topkv
