// The device's side of a session: its resident window and sinks, and the merge.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device/device_attention.h"

namespace topkv::gpu {

class CudaDevice;

/// The contracts of ComputeDevice::session_attention and session_attention_bytes. The device
/// outlives what is made.
std::unique_ptr<DeviceSession> make_session_attention(CudaDevice& device,
                                                      const SessionShape& shape);
std::int64_t session_attention_bytes(const SessionShape& shape);

}  // namespace topkv::gpu
