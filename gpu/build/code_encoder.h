// Codes made on a CUDA device of rows that come by from host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "index/codes/code_encoder.h"

namespace topkv::gpu {

class CudaDevice;

/// The contract of ComputeDevice::code_encoder. The device outlives what is made.
std::unique_ptr<CodeEncoder> make_code_encoder(CudaDevice& device, std::int64_t dim);

}  // namespace topkv::gpu
