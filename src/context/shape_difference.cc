#include "src/context/shape_difference.h"

#include <fmt/format.h>

namespace topkv {

bool stores_equal_index_keys(const AttentionShape& a, const AttentionShape& b) {
  if (!a.indexer || !b.indexer) return !a.indexer && !b.indexer;
  IndexerShape other = *b.indexer;  // what a step chooses is no part of what is stored
  other.top = a.indexer->top;
  other.local_blocks = a.indexer->local_blocks;
  if (!(*a.indexer == other)) return false;
  for (std::int64_t l = 0; l < a.layers; ++l)
    if (a.indexer_layer_of(l) != b.indexer_layer_of(l)) return false;
  return true;
}

std::string shape_difference(const AttentionShape& rows, const AttentionShape& wanted) {
  std::string text;
  const auto compare = [&](const char* what, auto of_rows, auto of_wanted) {
    if (of_rows == of_wanted) return;
    text += fmt::format("{}{} {}, not {}", text.empty() ? "" : "; ", what, of_rows, of_wanted);
  };
  compare("layers", rows.layers, wanted.layers);
  compare("query heads", rows.q_heads, wanted.q_heads);
  compare("KV heads", rows.kv_heads, wanted.kv_heads);
  compare("head dim", rows.head_dim, wanted.head_dim);
  const auto sliding_heads = [](const AttentionShape& shape) {
    return shape.sliding_kv_heads > 0 ? shape.sliding_kv_heads : shape.kv_heads;
  };
  const auto sliding_dim = [](const AttentionShape& shape) {
    return shape.sliding_head_dim > 0 ? shape.sliding_head_dim : shape.head_dim;
  };
  compare("KV heads of layers with a window", sliding_heads(rows), sliding_heads(wanted));
  compare("head dim of layers with a window", sliding_dim(rows), sliding_dim(wanted));
  compare("scale", rows.softmax_scale(), wanted.softmax_scale());
  compare("softcap", rows.softcap, wanted.softcap);
  compare("keys that are values:", rows.keys_are_values, wanted.keys_are_values);
  compare("chunks of", rows.chunk_len, wanted.chunk_len);
  for (std::int64_t l = 0; text.empty() && l < rows.layers; ++l) {
    compare("a window of", rows.window_of(l), wanted.window_of(l));
    compare("a layer with the rows of layer", rows.row_layer_of(l), wanted.row_layer_of(l));
    compare("a state of", rows.state_size_of(l), wanted.state_size_of(l));
    compare("a layer with the choice of layer", rows.indexer_layer_of(l),
            wanted.indexer_layer_of(l));
  }
  if (!stores_equal_index_keys(rows, wanted) && text.empty()) {
    text += fmt::format("{}another trained indexer{}", text.empty() ? "" : "; ",
                        rows.indexer && wanted.indexer ? "" : ", or none");
  }
  return text;
}

}  // namespace topkv
