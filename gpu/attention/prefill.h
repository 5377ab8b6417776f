// Attention of a prefill on a CUDA device. New rows stream to the store while tiles of earlier rows
// stream back from it.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device/device_prefill.h"

namespace topkv::gpu {

class CudaDevice;

/// Implements ComputeDevice::prefill_attention. The device must outlive the result.
std::unique_ptr<DevicePrefill> make_prefill_attention(CudaDevice& device,
                                                      const AttentionShape& shape,
                                                      const PrefillVisibility& visible,
                                                      std::int64_t chunk, const PrefillRows& rows);
/// Implements ComputeDevice::prefill_attention_bytes.
std::int64_t prefill_attention_bytes(const AttentionShape& shape, const PrefillVisibility& visible,
                                     KvDType rows, std::int64_t chunk, std::int64_t tokens);

}  // namespace topkv::gpu
