// Kernels of mixtures of experts, and of attention sinks.
//
// All functions are asynchronous on `stream`, take device pointers, allocate nothing, may be
// captured into a graph, do nothing for counts of 0, and throw Error when a launch fails. The
// device alone knows which experts are read. Sizes are 64-bit. Sums have a fixed order, so that
// results do not depend on other work.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/network/packed_product.h"
#include "src/core/math/matrix.h"
#include "src/device/routing.h"

namespace topkv::gpu {

/// The most experts that route() supports.
inline constexpr std::int64_t most_experts = 1024;
/// Implements ComputeDevice::route. REQUIRES: routing.experts <= most_experts.
void route(const float* scores, std::int64_t tokens, const Routing& routing, std::int32_t* ids,
           float* weights, cudaStream_t stream);

/// Implements ComputeDevice::expert_products for a few rows whose experts lie in device memory. It
/// reads the weights of each row once. Products and sums equal packed_vectors for packed weights;
/// for plain bf16 weights they are float32. Returns false if the device's shared memory is too
/// small for the inputs of one row; some outputs are written then. REQUIRES: stride > 0, or one
/// expert; plain weights are bf16; data is 256-byte aligned.
bool expert_products(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                     std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                     const VectorLimits& limits, cudaStream_t stream);

/// weights[slot] *= scales[ids[slot]].
void scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                     float* weights, cudaStream_t stream);

/// Computes out[r] = x[slots[r] / sharing], for rows of `width` elements.
void gather(const __nv_bfloat16* x, const std::int32_t* slots, std::int64_t count,
            std::int64_t sharing, std::int64_t width, __nv_bfloat16* out, cudaStream_t stream);

/// Implements ComputeDevice::add_weighted.
void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                  std::int64_t tokens, std::int64_t k, std::int64_t width, float* x,
                  cudaStream_t stream);

/// Implements ComputeDevice::attend_sinks.
void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens, std::int64_t heads,
                  std::int64_t head_dim, float* x, cudaStream_t stream);

}  // namespace topkv::gpu
