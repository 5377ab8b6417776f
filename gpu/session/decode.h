// The decode step of a session on CUDA: scans over codes, attention over the resident rows, and the
// merge of partials.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device/decode_backend.h"

namespace topkv::gpu {

class CudaDevice;

/// Implements ComputeDevice::decode_backend. The device must outlive the result.
DecodeBackend make_decode_backend(CudaDevice& device, const SessionShape& shape);
/// Implements ComputeDevice::decode_backend_bytes.
std::int64_t decode_backend_bytes(const SessionShape& shape);

}  // namespace topkv::gpu
