// Rows in q8 and q4 (topkv/types.h) on the device: made of float32, the same bytes as
// core/row_format.h makes of them, and read back as bf16 rows.
//
// All launchers are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. channels: [kv_heads, head_dim], as KeyView has them; null: all
// 1. dtypes: q8 or q4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/elementwise.h"
#include "topkv/types.h"

namespace topkv::gpu {

/// Where pack_blocks puts the bytes of row (token t, KV head h): keys + h * head_bytes +
/// t * the bytes of a key; values likewise. Null: they are not wanted.
struct BlockTarget {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::int64_t head_bytes = 0;  ///< of both
};

/// K and V [tokens, kv_heads, head_dim] float32 to rows, and what these stand for to bf16 rows;
/// channels are the keys'. bad: as pack_rows has it, lowered for what is not finite in a row.
void pack_blocks(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
                 std::int64_t head_dim, KvDType dtype, const float* channels,
                 const BlockTarget& blocks, const PackTarget& rows, unsigned long long* bad,
                 cudaStream_t stream);

/// Stored vectors to bf16: `count` of each head, vector t of head h at from + h * head_bytes + t *
/// its bytes, to out + h * head_stride + t * head_dim.
void unpack_blocks(const std::byte* from, std::int64_t head_bytes, std::int64_t count,
                   std::int64_t heads, std::int64_t head_dim, DType dtype, const float* channels,
                   __nv_bfloat16* out, std::int64_t head_stride, cudaStream_t stream);

/// The scales of channels that suit the first tokens of a layer's keys [tokens, kv_heads,
/// head_dim] (core/row_format.h): to channels, all 1 where the tokens are too few. REQUIRES:
/// head_dim <= 256.
void choose_channels(const float* keys, std::int64_t tokens, std::int64_t kv_heads,
                     std::int64_t head_dim, float* channels, cudaStream_t stream);

}  // namespace topkv::gpu
