// Gated DeltaNet layers (topkv/recurrence.h), and the gates around such layers.
//
// All functions are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. Sums are in float32 and have a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/device/gated_delta.h"

namespace topkv::gpu {

/// Implements ComputeDevice::gated_delta. REQUIRES: key_dim is most_delta_key_dim at most.
void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream);

/// Implements ComputeDevice::gated_delta_token, in one launch. Returns false, and does nothing, if
/// gate_weights are not plain rows of bf16 that can be read in eights.
bool gated_delta_token(const GatedDeltaNet& net, const GatedDeltaToken& token, cudaStream_t stream);

/// Implements ComputeDevice::gated_norm.
void gated_norm(const float* x, const float* gate, const float* weight, std::int64_t rows,
                std::int64_t width, float epsilon, __nv_bfloat16* out, cudaStream_t stream);

/// Implements ComputeDevice::part_pairs.
void part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                float* second, cudaStream_t stream);

/// Computes out = x / (1 + exp(-gate)).
void sigmoid_multiply(const float* gate, const float* x, std::int64_t count, __nv_bfloat16* out,
                      cudaStream_t stream);

/// Computes x[row] /= 1 + exp(-weights[row]). x: [rows, width].
void scale_rows(const float* weights, std::int64_t rows, std::int64_t width, float* x,
                cudaStream_t stream);

}  // namespace topkv::gpu
