// The way of a session's decode step on CUDA: scans, what is resident, and the merge of partials.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device/decode_backend.h"

namespace topkv::gpu {

class CudaDevice;

/// The contracts of ComputeDevice::decode_backend and decode_backend_bytes. The device
/// outlives what is made.
DecodeBackend make_decode_backend(CudaDevice& device, const SessionShape& shape);
std::int64_t decode_backend_bytes(const SessionShape& shape);

}  // namespace topkv::gpu
