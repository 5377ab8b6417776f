// The queries of one step, for the kernels of gpu/entries/.
//
// A *head step* is one token of a sequence with one KV head. In a step of `sequences` sequences its
// number is sequence * kv_heads + KV head. A head step has rows of its own.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace topkv::gpu {

/// A view of query vectors in device memory, 16-byte aligned. It owns nothing.
struct HeadStepQueries {
  const __nv_bfloat16* data = nullptr;  ///< [head_steps, group, head_dim]
  std::int64_t head_steps = 0;
  std::int64_t group = 1;     ///< query heads of a KV head, 1 to 16
  std::int64_t head_dim = 0;  ///< 64 or 128
  float scale = 0;            ///< on q·k
};

}  // namespace topkv::gpu
