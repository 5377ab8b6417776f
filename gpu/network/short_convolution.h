// Short convolution layers (topkv/recurrence.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "src/device/short_convolution.h"

namespace topkv::gpu {

/// Implements ComputeDevice::short_convolution, asynchronously on `stream`. Sums are in float32 and
/// have a fixed order. Does nothing for no tokens. Throws Error when the launch fails.
void short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step,
                       cudaStream_t stream);

}  // namespace topkv::gpu
