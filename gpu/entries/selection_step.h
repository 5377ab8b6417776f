// What a session's choice needs beside the kernels of selection.h. Everything is in device memory
// unless it says otherwise, nothing is allocated, all is asynchronous, on the stream.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "topkv/types.h"

namespace topkv::gpu {

/// Components of keys as SparqIndex keeps them, [blocks, dim, block_keys], to [dim, slots] from key
/// number `first` on. REQUIRES: block_keys, first and slots are multiples of 8, and there are as
/// many slots.
void join_blocks(const __nv_bfloat16* blocks, std::int64_t count, std::int64_t dim,
                 std::int64_t block_keys, std::int64_t first, std::int64_t slots,
                 __nv_bfloat16* components, cudaStream_t stream);

/// The first of each head's scores [heads, count] become NaN: they come last, and weigh nothing.
void leave_out_first(std::int64_t first, std::int64_t heads, std::int64_t count, float* scores,
                     cudaStream_t stream);

/// Likewise the scores of entries none of whose keys is in the range, as far as the first and the
/// last of each tell: spans, [heads / group, slots, 2].
void leave_out_elsewhere(const int* spans, PositionRange allowed, std::int64_t heads,
                         std::int64_t group, std::int64_t count, std::int64_t slots, float* scores,
                         cudaStream_t stream);

/// log_sums[h] = ln Σ_j sizes[h / group, j] exp(scores[h, j]) over j below `count`; of scores that
/// are not numbers nothing. sizes: [heads / group, slots]; log_sums: page-locked.
void sum_weights(const float* scores, const float* sizes, std::int64_t heads, std::int64_t group,
                 std::int64_t count, std::int64_t slots, float* log_sums, cudaStream_t stream);

}  // namespace topkv::gpu
