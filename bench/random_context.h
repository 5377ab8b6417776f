// A context of random rows with codes, for programs that save it.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "topkv/context.h"

namespace topkv {

inline std::shared_ptr<const Context> random_context(const AttentionShape& shape,
                                                     std::int64_t tokens, unsigned seed) {
  ContextBuilder builder(shape, {.capacity = tokens});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(tokens * shape.kv_heads * shape.head_dim));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (float& x : rows) x = normal(random);
    const TensorView view =
        TensorView::tokens_first(rows.data(), DType::f32, tokens, shape.kv_heads, shape.head_dim);
    builder.append(layer, view, view);
  }
  return builder.freeze()->with_index("codes:k=16,v=8");
}

}  // namespace topkv
