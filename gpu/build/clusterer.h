// Vectors clustered on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>

#include "index/lists/clustering.h"

namespace topkv::gpu {

class CudaDevice;

/// The contract of ComputeDevice::clusterer. The device outlives what is made.
std::unique_ptr<Clusterer> make_clusterer(CudaDevice& device, std::int64_t dim);

}  // namespace topkv::gpu
