// Mixtures of experts on a CUDA device, and attention's sinks.
//
// All launchers are asynchronous on `stream`, take device pointers, allocate nothing, may be
// captured into a graph, do nothing for counts of 0, and throw Error when a launch fails. Which
// experts are read is known to the device alone. Sizes are 64-bit. Results do not depend on what
// else runs: sums have a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/network/packed_product.h"
#include "src/core/math/matrix.h"

namespace topkv::gpu {

/// ComputeDevice::route. REQUIRES: at most most_experts of them.
inline constexpr std::int64_t most_experts = 1024;
void route(const float* scores, std::int64_t tokens, std::int64_t experts, std::int64_t k,
           bool over_all, std::int32_t* ids, float* weights, cudaStream_t stream);

/// ComputeDevice::expert_products of rows whose experts lie in device memory: reads each row's
/// weights once, for few rows. Products and sums are those of packed_vectors, and for plain weights
/// in bf16, float32. False, and not all done, where the device's shared memory has no room for the
/// inputs of one row. REQUIRES: stride > 0, or one expert; plain weights in bf16; data aligned to
/// 256 bytes.
bool expert_products(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                     std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                     const VectorLimits& limits, cudaStream_t stream);

/// out[r] = x[slots[r] / sharing], rows of `width`.
void gather(const __nv_bfloat16* x, const std::int32_t* slots, std::int64_t count,
            std::int64_t sharing, std::int64_t width, __nv_bfloat16* out, cudaStream_t stream);

/// ComputeDevice::add_weighted.
void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                  std::int64_t tokens, std::int64_t k, std::int64_t width, float* x,
                  cudaStream_t stream);

/// ComputeDevice::attend_sinks.
void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens, std::int64_t heads,
                  std::int64_t head_dim, float* x, cudaStream_t stream);

}  // namespace topkv::gpu
