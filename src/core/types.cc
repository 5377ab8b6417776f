#include "topkv/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {

namespace {

constexpr std::int64_t block = 32;  // elements of q8 and q4
constexpr std::int64_t q8_block = 34;
constexpr std::int64_t q4_block = 20;
constexpr std::int64_t most_of_indexer = 1 << 20;  // so that products of two fit 64 bits
constexpr std::int64_t most_state_size = std::int64_t{1} << 40;  // so that bytes fit 64 bits

void check_row_layer(const AttentionShape& shape, std::int64_t layer) {
  const std::int64_t rows = shape.row_layer_of(layer);
  if (rows == layer) return;
  if (rows < 0 || rows > layer || !shape.has_rows(rows)) {
    throw InvalidArgument(
        fmt::format("attention shape: row_layer[{}] is {}; expected the layer itself, or an "
                    "earlier layer with rows of its own",
                    layer, rows));
  }
  if (shape.window_of(rows) == shape.window_of(layer)) return;
  throw InvalidArgument(
      fmt::format("attention shape: layer {} attends the rows of layer {}, and their sliding "
                  "windows are {} and {}; expected equal windows",
                  layer, rows, shape.window_of(layer), shape.window_of(rows)));
}

void check_state_size(const AttentionShape& shape, std::int64_t layer) {
  const std::int64_t size = shape.state_size_of(layer);
  if (size < 0 || size > most_state_size) {
    throw InvalidArgument(
        fmt::format("attention shape: state_size[{}] is {}; expected 0 for attention, or how many "
                    "values a recurrent state has, at most {}",
                    layer, size, most_state_size));
  }
  if (size == 0 || (shape.window_of(layer) == 0 && shape.row_layer_of(layer) == layer)) return;
  throw InvalidArgument(fmt::format(
      "attention shape: layer {} has a recurrent state, and also {}; expected one of them", layer,
      shape.window_of(layer) > 0 ? "a sliding window" : "rows of another layer"));
}

void check_sliding_heads(const AttentionShape& shape) {
  if (shape.sliding_kv_heads < 0 ||
      (shape.sliding_kv_heads > 0 && shape.q_heads % shape.sliding_kv_heads != 0)) {
    throw InvalidArgument(
        fmt::format("attention shape: sliding_kv_heads is {}; expected a divisor of the {} query "
                    "heads, or 0 for kv_heads",
                    shape.sliding_kv_heads, shape.q_heads));
  }
  if (shape.sliding_head_dim < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: sliding_head_dim is {}; expected 1 or more, or 0 for "
                    "head_dim",
                    shape.sliding_head_dim));
  }
  if (shape.sliding_head_dim == 0 || shape.sliding_head_dim == shape.head_dim || shape.scale > 0)
    return;
  throw InvalidArgument(
      fmt::format("attention shape: heads of {} elements, of {} in layers with a sliding window, "
                  "and scale 0; give one scale for both",
                  shape.head_dim, shape.sliding_head_dim));
}

void check_indexer_shape(const AttentionShape& shape) {
  const IndexerShape& of = *shape.indexer;
  for (const auto& [name, value] : {std::pair("dim", of.dim),
                                    {"heads", of.heads},
                                    {"tokens_per_key", of.tokens_per_key},
                                    {"block", of.block}}) {
    if (value >= 1 && value <= most_of_indexer) continue;
    throw InvalidArgument(fmt::format("attention shape: indexer.{} is {}; expected 1 to {}", name,
                                      value, most_of_indexer));
  }
  if (of.top < 1)
    throw InvalidArgument(
        fmt::format("attention shape: indexer.top is {}; it must be at least 1", of.top));
  if (of.local_blocks < 0 || of.local_blocks > of.top) {
    throw InvalidArgument(fmt::format(
        "attention shape: indexer.local_blocks is {}; expected 0 to the {} blocks of indexer.top",
        of.local_blocks, of.top));
  }
  if (of.choices != 1 && of.choices != shape.kv_heads) {
    throw InvalidArgument(
        fmt::format("attention shape: indexer.choices is {}; expected 1, which all KV heads share, "
                    "or one for each of the {} KV heads",
                    of.choices, shape.kv_heads));
  }
  if (of.heads % of.choices != 0) {
    throw InvalidArgument(
        fmt::format("attention shape: {} index queries cannot score {} choices evenly; expected a "
                    "multiple in indexer.heads",
                    of.heads, of.choices));
  }
  if (of.dtype == DType::f32 || of.dtype == DType::bf16) return;
  throw InvalidArgument(
      fmt::format("attention shape: index keys in {}; expected f32 or bf16", name_of(of.dtype)));
}

void check_indexer_layer(const AttentionShape& shape, std::int64_t layer) {
  const std::int64_t of = shape.indexer_layer_of(layer);
  if (of == -1) return;
  if (of < 0 || of > layer || !shape.has_index_keys(of)) {
    throw InvalidArgument(
        fmt::format("attention shape: indexer_layer[{}] is {}; expected the layer itself, an "
                    "earlier layer that chooses, or -1 for no indexer",
                    layer, of));
  }
  if (shape.is_attention(layer) && shape.window_of(layer) == 0) return;
  throw InvalidArgument(
      fmt::format("attention shape: layer {} has a trained indexer, and also {}; give -1 for it in "
                  "indexer_layer",
                  layer, shape.is_attention(layer) ? "a sliding window" : "a recurrent state"));
}

void check_indexer(const AttentionShape& shape) {
  if (!shape.indexer) {
    if (shape.indexer_layer.empty()) return;
    throw InvalidArgument(
        "attention shape: indexer_layer is given without an indexer; give both, or neither");
  }
  check_indexer_shape(shape);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) check_indexer_layer(shape, layer);
  if (shape.chunk_len == 0) return;
  throw InvalidArgument(fmt::format(
      "attention shape: a trained indexer and chunks of {} tokens; an indexer chooses among all "
      "earlier tokens: give chunk_len 0",
      shape.chunk_len));
}

/// Checks what each layer keeps.
void check_layers(const AttentionShape& shape) {
  for (const auto& [name, entries] : {std::pair("row_layer", &shape.row_layer),
                                      {"state_size", &shape.state_size},
                                      {"indexer_layer", &shape.indexer_layer}}) {
    if (entries->empty() || std::ssize(*entries) == shape.layers) continue;
    throw InvalidArgument(fmt::format("attention shape: {} has {} entries for {} layers", name,
                                      entries->size(), shape.layers));
  }
  bool attends = false;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    check_state_size(shape, layer);
    attends = attends || shape.is_attention(layer);
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) check_row_layer(shape, layer);
  check_indexer(shape);
  if (attends) return;
  throw InvalidArgument(
      "attention shape: every layer has a recurrent state; at least one layer must be attention");
}

}  // namespace

std::int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

std::int64_t vector_bytes(DType dtype, std::int64_t dim) {
  if (!in_blocks(dtype)) return dim * bytes_of(dtype);
  return (dim + block - 1) / block * (dtype == DType::q8 ? q8_block : q4_block);
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::q8:
      return "q8";
    case DType::q4:
      return "q4";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8, DType::q4}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw InvalidArgument(fmt::format(
      "unknown element type '{}'; known are f32, f16, bf16, q8 and q4", printable_beginning(name)));
}

std::string KvDType::name() const {
  if (keys == values) return std::string(name_of(keys));
  return fmt::format("{}/{}", name_of(keys), name_of(values));
}

KvDType KvDType::parse(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return parse_dtype(name);
  return {parse_dtype(name.substr(0, slash)), parse_dtype(name.substr(slash + 1))};
}

std::string_view name_of(IndexScore score) { return score == IndexScore::dot ? "dot" : "relu"; }

IndexScore parse_index_score(std::string_view name) {
  for (const IndexScore score : {IndexScore::dot, IndexScore::relu})
    if (name == name_of(score)) return score;
  throw InvalidArgument(fmt::format("the score of index keys is '{}'; expected 'dot' or 'relu'",
                                    printable_beginning(name)));
}

float AttentionShape::softmax_scale() const {
  return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
}

std::int64_t AttentionShape::first_attention() const {
  std::int64_t layer = 0;
  while (!is_attention(layer)) ++layer;
  return layer;
}

std::int64_t AttentionShape::row_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) count += has_rows(layer) ? 1 : 0;
  return count;
}

std::int64_t AttentionShape::index_key_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) count += has_index_keys(layer) ? 1 : 0;
  return count;
}

bool AttentionShape::has_two_widths() const {
  if (std::ranges::none_of(sliding_window, [](std::int64_t window) { return window > 0; }))
    return false;
  return (sliding_kv_heads > 0 && sliding_kv_heads != kv_heads) ||
         (sliding_head_dim > 0 && sliding_head_dim != head_dim);
}

std::int64_t AttentionShape::widest_kv() const {
  std::int64_t most = kv_heads * head_dim;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    most = std::max(most, kv_heads_of(layer) * head_dim_of(layer));
  return most;
}

std::int64_t AttentionShape::widest_head() const {
  std::int64_t most = head_dim;
  for (std::int64_t layer = 0; layer < layers; ++layer) most = std::max(most, head_dim_of(layer));
  return most;
}

std::int64_t AttentionShape::context_bytes(KvDType dtype, std::int64_t tokens) const {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (!has_rows(layer)) continue;
    const std::int64_t rows = window_of(layer) > 0 ? std::min(window_of(layer), tokens) : tokens;
    bytes += rows * kv_heads_of(layer) * row_bytes_of(layer, dtype);
  }
  if (indexer) bytes += index_key_layers() * indexer->keys(tokens) * indexer->key_bytes();
  return bytes;
}

std::int64_t AttentionShape::bytes_per_token(KvDType dtype) const {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (has_rows(layer)) bytes += kv_heads_of(layer) * row_bytes_of(layer, dtype);
  }
  if (indexer) {
    const std::int64_t keys = index_key_layers() * indexer->key_bytes();
    bytes += (keys + indexer->tokens_per_key - 1) / indexer->tokens_per_key;
  }
  return bytes;
}

void AttentionShape::check() const {
  const auto positive = [](std::int64_t value, const char* what) {
    if (value < 1) {
      throw InvalidArgument(
          fmt::format("attention shape: {} is {}; it must be at least 1", what, value));
    }
  };
  positive(layers, "layers");
  positive(q_heads, "q_heads");
  positive(kv_heads, "kv_heads");
  positive(head_dim, "head_dim");
  if (q_heads % kv_heads != 0) {
    throw InvalidArgument(fmt::format(
        "attention shape: {} query heads cannot share {} KV heads evenly", q_heads, kv_heads));
  }
  check_sliding_heads(*this);
  if (!std::isfinite(scale) || scale < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: scale is {}; it must be positive, or 0 for "
                    "1/sqrt(head_dim)",
                    scale));
  }
  if (!std::isfinite(softcap) || softcap < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: softcap is {}; it must be positive, or 0 for none", softcap));
  }
  if (!sliding_window.empty() && static_cast<std::int64_t>(sliding_window.size()) != layers) {
    throw InvalidArgument(
        fmt::format("attention shape: sliding_window has {} entries for {} layers",
                    sliding_window.size(), layers));
  }
  for (const std::int64_t window : sliding_window) {
    if (window < 0) {
      throw InvalidArgument(
          fmt::format("attention shape: a sliding window of {} tokens; use 0 for none", window));
    }
  }
  if (chunk_len < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: chunk_len is {}; it must be the tokens of a chunk, or 0 for "
                    "attention without chunks",
                    chunk_len));
  }
  for (const std::int64_t window : sliding_window) {
    if (chunk_len == 0 || window == 0) continue;
    throw InvalidArgument(
        fmt::format("attention shape: chunks of {} tokens and a sliding window of {}; dual chunk "
                    "attention is for layers that attend all tokens",
                    chunk_len, window));
  }
  check_layers(*this);
}

void AttentionShape::check_rows(KvDType dtype) const {
  if (!keys_are_values || dtype.keys == dtype.values) return;
  throw InvalidArgument(
      fmt::format("rows in {}: the value of a token is its key here, and one vector is stored for "
                  "both; expected one dtype, such as {}",
                  dtype.name(), name_of(dtype.keys)));
}

}  // namespace topkv
