// Rows in q8 and q4 (topkv/types.h) on the device: float32 vectors to blocks, and blocks to bf16.
// The bytes equal those of core/math/row_format.h.
//
// All functions are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. dtypes: q8 or q4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/network/elementwise.h"
#include "topkv/types.h"

namespace topkv::gpu {

/// The data that keys are stored with beside their blocks, as in KeyView, in device memory. Values
/// have no such data.
struct StoredKeys {
  const float* channels = nullptr;  ///< [kv_heads, head_dim]; null: all 1
  const float* bias = nullptr;      ///< [kv_heads, 3, head_dim]; null: none
  std::int64_t first_position = 0;  ///< RoPE position of the first key
  std::int64_t chunk_len = 0;       ///< above 0: RoPE positions are modulo this

  /// The same data for keys from RoPE position `position` on.
  StoredKeys from(std::int64_t position) const { return {channels, bias, position, chunk_len}; }
};

/// The target of pack_blocks. The key of token t and KV head h goes to keys + h * head_bytes + t *
/// (bytes of a key), and the value to values + h * head_bytes + t * (bytes of a value). Null
/// pointers: no blocks are written.
struct BlockTarget {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::int64_t head_bytes = 0;  ///< from a KV head to the next, in both arrays
};

/// Packs K and V, [tokens, kv_heads, head_dim] float32, to blocks, and unpacks these to the bf16
/// rows of `rows`. Null `values`: there are none. nonfinite: a device word; see pack_rows in
/// elementwise.h.
void pack_blocks(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
                 std::int64_t head_dim, KvDType dtype, const StoredKeys& stored,
                 const BlockTarget& blocks, const PackTarget& rows, unsigned long long* nonfinite,
                 cudaStream_t stream);

/// Unpacks `count` vectors of each head to bf16. Vector t of head h is read at from + h *
/// head_bytes + t * (bytes of a vector), and written at out + h * head_stride + t * head_dim.
void unpack_blocks(const std::byte* from, std::int64_t head_bytes, std::int64_t count,
                   std::int64_t heads, std::int64_t head_dim, DType dtype, const StoredKeys& stored,
                   __nv_bfloat16* out, std::int64_t head_stride, cudaStream_t stream);

/// Chooses the scales of channels from the first keys of a layer, [tokens, kv_heads, head_dim],
/// less their bias (core/math/row_format.h). channels: [kv_heads, head_dim], receives the scales,
/// or 1 if there are too few tokens. stored.channels is not read. REQUIRES: head_dim <= 576.
void choose_channels(const float* keys, std::int64_t tokens, std::int64_t kv_heads,
                     std::int64_t head_dim, const StoredKeys& stored, float* channels,
                     cudaStream_t stream);

}  // namespace topkv::gpu
