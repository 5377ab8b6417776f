// Bounds of the keys of a page, for Quest (index/methods/quest_index.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

/// Computes the bounds of pages of `page` rows, for rows from number `first` to `rows`. first: a
/// multiple of page. keys: [head_steps, key_slots, head_dim]; bounds: [head_steps, page_slots, 2,
/// head_dim], for each channel the largest value, then for each channel the smallest value.
/// Pointers are to device memory. Asynchronous on the stream.
void bound_pages(const __nv_bfloat16* keys, std::int64_t head_steps, std::int64_t key_slots,
                 std::int64_t head_dim, std::int64_t page, std::int64_t first, std::int64_t rows,
                 __nv_bfloat16* bounds, std::int64_t page_slots, cudaStream_t stream);

}  // namespace topkv::gpu
