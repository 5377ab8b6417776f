// SparQ (index/methods/sparq_index.h) over rows in device memory: a copy of the keys, components
// first, and the mean value for rows that are not attended. gpu/entries/entry_scores.h states the
// rules for memory and errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/entries/head_step_queries.h"

namespace topkv::gpu {

/// Copies keys, [head_steps, slots, head_dim], to components, [head_steps, head_dim, slots], from
/// row number `first` to `rows`. REQUIRES: slots is a multiple of 8.
void spread_components(const __nv_bfloat16* keys, std::int64_t head_steps, std::int64_t slots,
                       std::int64_t head_dim, std::int64_t first, std::int64_t rows,
                       __nv_bfloat16* components, cudaStream_t stream);

/// SparQ's mean value reallocation: out = share out + (1 - share) mean. shares: [head_steps,
/// group]; means: [head_steps, head_dim].
void reallocate_mean(const HeadStepQueries& queries, const float* shares, const float* means,
                     const PartialView& partial, cudaStream_t stream);

}  // namespace topkv::gpu
