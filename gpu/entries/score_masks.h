// Operations on scores between scoring and choosing. They leave out keys beyond a session's range,
// and sum weights. Pointers are to device memory unless a comment says otherwise. The functions
// allocate nothing and run asynchronously on the stream.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "topkv/types.h"

namespace topkv::gpu {

/// Copies components of keys from the blocks of SparqIndex, [blocks, dim, block_keys], to [dim,
/// slots], from key number `first` on. count: the number of blocks. REQUIRES: block_keys, first and
/// slots are multiples of 8, and first + count * block_keys <= slots.
void join_blocks(const __nv_bfloat16* blocks, std::int64_t count, std::int64_t dim,
                 std::int64_t block_keys, std::int64_t first, std::int64_t slots,
                 __nv_bfloat16* components, cudaStream_t stream);

/// Sets the first `first` scores of each head to NaN, so that they come last and weigh nothing.
/// scores: [heads, count].
void leave_out_first(std::int64_t first, std::int64_t heads, std::int64_t count, float* scores,
                     cudaStream_t stream);

/// Sets the scores of the entries whose keys all lie outside `allowed` to NaN. spans: [heads /
/// group, slots, 2], the first and the last key of each entry. scores: [heads, count].
void leave_out_elsewhere(const int* spans, PositionRange allowed, std::int64_t heads,
                         std::int64_t group, std::int64_t count, std::int64_t slots, float* scores,
                         cudaStream_t stream);

/// Writes log_sums[h] = ln Σ_j sizes[h / group, j] exp(scores[h, j]) over j below `count`. NaN
/// scores add nothing. scores: [heads, count]; sizes: [heads / group, slots]; log_sums: [heads], in
/// page-locked host memory.
void sum_weights(const float* scores, const float* sizes, std::int64_t heads, std::int64_t group,
                 std::int64_t count, std::int64_t slots, float* log_sums, cudaStream_t stream);

}  // namespace topkv::gpu
