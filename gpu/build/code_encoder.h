// Makes codes on a CUDA device from rows in host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "index/codes/code_encoder.h"

namespace topkv::gpu {

class CudaDevice;

/// Implements ComputeDevice::code_encoder. The device must outlive the result.
std::unique_ptr<CodeEncoder> make_code_encoder(CudaDevice& device, std::int64_t dim);

}  // namespace topkv::gpu
