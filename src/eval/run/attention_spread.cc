#include "src/eval/run/attention_spread.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr double share = 0.75;

}  // namespace

void add_spread(const Context& context, std::int64_t layer, const float* queries, LayerSpread& to) {
  const AttentionShape& shape = context.shape();
  const std::int64_t count = context.tokens();
  if (count == 0) return;
  std::vector<LayerSpread> heads(static_cast<std::size_t>(shape.q_heads));
  parallel_for(shape.q_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> weights(static_cast<std::size_t>(count));
    for (std::int64_t h = begin; h < end; ++h) {
      const RowsView rows = context.rows(layer, h / shape.group());
      dot_block(queries + h * shape.head_dim, 1, rows.keys, weights.data(), count);
      scale_by(weights.data(), count, shape.softmax_scale());
      if (shape.softcap > 0) soft_cap(weights.data(), count, shape.softcap);
      const double total = exp_shifted(weights.data(), count, max_of(weights.data(), count));
      LayerSpread& own = heads[static_cast<std::size_t>(h)];
      for (const float weight : weights) {
        const double p = weight / total;
        if (p > 0) own.entropy -= p * std::log(p);
      }
      std::sort(weights.begin(), weights.end(), std::greater<>());
      double sum = 0;
      std::int64_t keys = 0;
      while (keys < count && sum < share * total) sum += weights[static_cast<std::size_t>(keys++)];
      own.keys = static_cast<double>(keys);
    }
  });
  for (const LayerSpread& head : heads) {
    to.keys += head.keys;
    to.entropy += head.entropy;
    ++to.heads;
  }
}

}  // namespace topkv
