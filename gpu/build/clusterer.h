// Clusters vectors on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>

#include "index/lists/clustering.h"

namespace topkv::gpu {

class CudaDevice;

/// Implements ComputeDevice::clusterer. The device must outlive the result.
std::unique_ptr<Clusterer> make_clusterer(CudaDevice& device, std::int64_t dim);

}  // namespace topkv::gpu
