// Rows in q8 and q4 (topkv/types.h) on the device: made of float32, the same bytes as
// core/row_format.h makes of them, and read back as bf16 rows.
//
// All launchers are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. dtypes: q8 or q4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/network/elementwise.h"
#include "topkv/types.h"

namespace topkv::gpu {

/// What keys are stored with beside their blocks, as KeyView has it, in device memory. Values have
/// none of it.
struct StoredKeys {
  const float* channels = nullptr;  ///< [kv_heads, head_dim]; null: all 1
  const float* bias = nullptr;      ///< [kv_heads, 3, head_dim]; null: none
  std::int64_t first_position = 0;  ///< RoPE position of the first of the keys
  std::int64_t chunk_len = 0;       ///< above 0: RoPE positions are modulo this

  /// From RoPE position `position` on.
  StoredKeys from(std::int64_t position) const { return {channels, bias, position, chunk_len}; }
};

/// Where pack_blocks puts the bytes of row (token t, KV head h): keys + h * head_bytes +
/// t * the bytes of a key; values likewise. Null: they are not wanted.
struct BlockTarget {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::int64_t head_bytes = 0;  ///< of both
};

/// K and V [tokens, kv_heads, head_dim] float32 to rows, and what these stand for to bf16 rows;
/// nonfinite: as pack_rows has it, lowered for what is not finite in a row.
void pack_blocks(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
                 std::int64_t head_dim, KvDType dtype, const StoredKeys& stored,
                 const BlockTarget& blocks, const PackTarget& rows, unsigned long long* nonfinite,
                 cudaStream_t stream);

/// Stored vectors to bf16: `count` of each head, vector t of head h at from + h * head_bytes + t *
/// its bytes, to out + h * head_stride + t * head_dim.
void unpack_blocks(const std::byte* from, std::int64_t head_bytes, std::int64_t count,
                   std::int64_t heads, std::int64_t head_dim, DType dtype, const StoredKeys& stored,
                   __nv_bfloat16* out, std::int64_t head_stride, cudaStream_t stream);

/// The scales of channels that suit the first tokens of a layer's keys [tokens, kv_heads,
/// head_dim], less their bias (core/row_format.h): to channels, all 1 where the tokens are too few.
/// stored: what it says of channels is not read. REQUIRES: head_dim <= 256.
void choose_channels(const float* keys, std::int64_t tokens, std::int64_t kv_heads,
                     std::int64_t head_dim, const StoredKeys& stored, float* channels,
                     cudaStream_t stream);

}  // namespace topkv::gpu
