// Mamba-2 layers (topkv/recurrence.h), and the gated norm behind them.
//
// All functions are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. Sums are in float32 and have a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/device/mamba2.h"

namespace topkv::gpu {

/// Implements ComputeDevice::mamba2. REQUIRES: state_dim is most_mamba_state_dim at most.
void mamba2(const Mamba2& net, const Mamba2Step& step, cudaStream_t stream);

/// Implements ComputeDevice::norm_gated.
void norm_gated(const float* x, const float* gate, const float* weight, std::int64_t rows,
                std::int64_t width, std::int64_t groups, float epsilon, __nv_bfloat16* out,
                cudaStream_t stream);

}  // namespace topkv::gpu
