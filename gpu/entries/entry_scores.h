// Scores of the key summaries of a context in device memory: pages (Quest), centroids of clusters,
// and components of keys (SparQ). index/methods/ has these methods on the host, and names their
// papers.
//
// All pointers are to device memory, 16-byte aligned. The functions allocate nothing and run
// asynchronously on the stream. They check their arguments before they launch a kernel, and throw
// Unsupported for a shape that no kernel has, InvalidArgument for wrong arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/entries/head_step_queries.h"

namespace topkv::gpu {

/// Scores pages for Quest: the upper bound Σ_i max(q_i largest_i, q_i smallest_i) of q·k over the
/// keys of a page, times queries.scale. bounds: [head_steps, page_slots, 2, head_dim], for each
/// channel of a page the largest value, then for each channel the smallest value. scores:
/// [head_steps, group, pages], float32.
void score_pages(const HeadStepQueries& queries, const __nv_bfloat16* bounds,
                 std::int64_t page_slots, std::int64_t pages, float* scores, cudaStream_t stream);

/// Scores centroids: q·c times queries.scale. centroids: [head_steps, slots, head_dim]; scores:
/// [head_steps, group, count], float32.
void score_centroids(const HeadStepQueries& queries, const __nv_bfloat16* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream);

/// Scores centroids in float32: q·c times queries.scale. exact: the queries, float32, in the layout
/// of queries.data, which is not read. centroids: [head_steps, slots, head_dim]; scores:
/// [head_steps, group, count].
void score_centroids(const HeadStepQueries& queries, const float* exact, const float* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream);

/// Scores rows for SparQ, from the `read` components with the largest sums of |q| over the group.
/// The sum over these components is divided by the square root of their share of |q|, and
/// multiplied by queries.scale. components: [head_steps, head_dim, slots]; scores: [head_steps,
/// group, rows], float32. REQUIRES: slots is a multiple of 8.
void score_components(const HeadStepQueries& queries, const __nv_bfloat16* components,
                      std::int64_t slots, std::int64_t rows, std::int64_t read, float* scores,
                      cudaStream_t stream);

}  // namespace topkv::gpu
