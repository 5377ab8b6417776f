// Views: tensors that somebody else owns. Whoever makes a view keeps its memory alive and unchanged
// for as long as the function that takes the view says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/types.h"

namespace topkv {

/// A view of K, V or Q of consecutive tokens, as networks produce them.
///
/// The elements of one head are contiguous. Tokens and heads may have any stride. Strides count
/// elements, not bytes.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  /// Makes a view of contiguous data [tokens, heads, head_dim].
  static TensorView tokens_first(const void* data, DType dtype, std::int64_t tokens,
                                 std::int64_t heads, std::int64_t head_dim) {
    return {data, dtype, tokens, heads, head_dim, heads * head_dim, head_dim};
  }
  /// Makes a view of contiguous data [heads, tokens, head_dim], the layout of transformers' caches.
  static TensorView heads_first(const void* data, DType dtype, std::int64_t tokens,
                                std::int64_t heads, std::int64_t head_dim) {
    return {data, dtype, tokens, heads, head_dim, head_dim, tokens * head_dim};
  }

  /// Returns the address of the first element of a token's head. REQUIRES: dtype is f32, f16 or
  /// bf16.
  const std::byte* at(std::int64_t token, std::int64_t head) const {
    return static_cast<const std::byte*>(data) +
           (token * token_stride + head * head_stride) * bytes_of(dtype);
  }
};

/// A view of the keys, or of the values, of one layer and KV head: `count` vectors of `dim`
/// elements. Each vector begins stride_bytes after the one before it. A key's position is its
/// number in the view, from 0.
struct KeyView {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::int64_t stride_bytes = 0;
  /// Scales of keys in q8 and q4: [dim], powers of two. A key's element i is its stored element
  /// times channels[i]. Null: all scales are 1.
  const float* channels = nullptr;
  /// The bias that was taken off keys before they were rounded to q8 or q4: [3, dim]. Null: no
  /// bias.
  ///
  /// From element i of a key at the RoPE position p, this was taken off:
  ///
  ///     bias[i] cos(p f) + bias[dim + i] sin(p f),   f = bias[2 dim + i]
  ///
  /// It is the bias of a K projection, as RoPE turns it.
  const float* bias = nullptr;
  std::int64_t first_position = 0;  ///< the RoPE position of key 0
  std::int64_t chunk_len = 0;       ///< above 0: RoPE positions count modulo chunk_len

  /// Returns the address of the vector at a position.
  const std::byte* key(std::int64_t position) const { return data + position * stride_bytes; }
  /// Returns a view of the keys in a range of positions. Its first key has position 0. REQUIRES:
  /// the range lies within this view.
  KeyView part(PositionRange range) const {
    return {key(range.begin), dtype,    range.size(), dim,
            stride_bytes,     channels, bias,         first_position + range.begin,
            chunk_len};
  }
};

/// A view of the rows of one layer and KV head: K and V of the same positions.
struct RowsView {
  KeyView keys;
  KeyView values;

  /// Returns the number of rows.
  std::int64_t count() const { return keys.count; }
  /// Returns the elements of a key.
  std::int64_t dim() const { return keys.dim; }
  /// Returns the address of the key at a position.
  const std::byte* key(std::int64_t position) const { return keys.key(position); }
  /// Returns the address of the value at a position.
  const std::byte* value(std::int64_t position) const { return values.key(position); }
  /// Returns a view of the rows in a range of positions. Its first row has position 0. REQUIRES:
  /// the range lies within this view.
  RowsView part(PositionRange range) const { return {keys.part(range), values.part(range)}; }
};

/// A view of a partial: out [heads, head_dim] and lse [heads], both float32 and contiguous. The
/// caller owns the memory.
///
/// `heads` counts independent queries. It is the number of query heads, or tokens times heads.
struct PartialView {
  float* out = nullptr;
  float* lse = nullptr;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;

  /// Returns a view of the heads first to first + count - 1.
  PartialView part(std::int64_t first, std::int64_t count = 1) const {
    return {out + first * head_dim, lse + first, count, head_dim};
  }
};

}  // namespace topkv
