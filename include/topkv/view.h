// Non-owning views of tensors. A view never owns memory; whoever makes one keeps the memory alive
// and unchanged for as long as the callee's documentation says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/types.h"

namespace topkv {

/// K or V (or Q) of consecutive tokens, as networks produce them: elements of one head are
/// contiguous, tokens and heads may stride freely. Strides are in elements.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  /// data is [tokens, heads, head_dim], contiguous.
  static TensorView tokens_first(const void* data, DType dtype, std::int64_t tokens,
                                 std::int64_t heads, std::int64_t head_dim) {
    return {data, dtype, tokens, heads, head_dim, heads * head_dim, head_dim};
  }
  /// data is [heads, tokens, head_dim], contiguous: the layout of transformers' caches.
  static TensorView heads_first(const void* data, DType dtype, std::int64_t tokens,
                                std::int64_t heads, std::int64_t head_dim) {
    return {data, dtype, tokens, heads, head_dim, head_dim, tokens * head_dim};
  }

  const std::byte* at(std::int64_t token, std::int64_t head) const {
    return static_cast<const std::byte*>(data) +
           (token * token_stride + head * head_stride) * bytes_of(dtype);
  }
};

/// Keys (or values) of one (layer, KV head): count vectors of dim elements, each stride_bytes after
/// the last. The position of a key is its number in the view.
struct KeyView {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::int64_t stride_bytes = 0;
  /// Of q8 and q4: what each element is stored in parts of, [dim], powers of two; null: all 1.
  const float* channels = nullptr;
  /// Of q8 and q4: what each key had taken off before it was rounded, [3, dim]; null: nothing.
  /// Element i of the key at the RoPE position p had bias[i] cos(p f) + bias[dim + i] sin(p f)
  /// taken off, where f is bias[2 dim + i]: the bias of a K projection, as RoPE turns it.
  const float* bias = nullptr;
  std::int64_t first_position = 0;  ///< RoPE position of key 0
  std::int64_t chunk_len = 0;       ///< above 0: RoPE positions are modulo this

  const std::byte* key(std::int64_t position) const { return data + position * stride_bytes; }
  /// Those of a range of positions, which become 0 and on. REQUIRES: within the view.
  KeyView part(PositionRange range) const {
    return {key(range.begin), dtype,    range.size(), dim,
            stride_bytes,     channels, bias,         first_position + range.begin,
            chunk_len};
  }
};

/// Rows of one (layer, KV head): K and V of the same positions.
struct RowsView {
  KeyView keys;
  KeyView values;

  std::int64_t count() const { return keys.count; }
  std::int64_t dim() const { return keys.dim; }
  const std::byte* key(std::int64_t position) const { return keys.key(position); }
  const std::byte* value(std::int64_t position) const { return values.key(position); }
  /// Those of a range of positions, which become 0 and on. REQUIRES: within the rows.
  RowsView part(PositionRange range) const { return {keys.part(range), values.part(range)}; }
};

}  // namespace topkv
