// Giving a device what stands for a context's keys (index/stand_ins.h).
#pragma once

#include <cstdint>
#include <memory>

#include "src/context/segment.h"
#include "src/device/device_sizes.h"
#include "topkv/device.h"
#include "topkv/session.h"

namespace topkv {

/// What stands for the index's keys where a CUDA device chooses by it; null: the host searches.
/// Made at the first call and kept as codes are (codes_on_device.h), and refused as they are where
/// there is no room. segment: the index's. Safe from many threads, of which none holds the device's
/// lock. Throws OutOfMemory.
std::shared_ptr<const DeviceSelection> selection_on(const Device& device,
                                                    const AttentionShape& shape,
                                                    const SegmentIndex& index);

/// Bytes that it would take of a device that need not be there; 0: the host would search.
std::int64_t device_selection_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                    std::int64_t tokens, const DeviceSizes& device);

}  // namespace topkv
