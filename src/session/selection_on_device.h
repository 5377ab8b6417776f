// Key summaries of a context (index/common/stand_ins.h) on the device that chooses entries by them.
#pragma once

#include <cstdint>
#include <memory>

#include "src/context/segment.h"
#include "src/device/device_sizes.h"
#include "topkv/device.h"
#include "topkv/session.h"

namespace topkv {

/// Returns an index's key summaries for a CUDA device that chooses by them. Null: the host
/// searches.
///
/// The first call makes the copy. The index keeps it, as codes_on does. Safe from many threads,
/// none of which may hold the device's lock. Throws OutOfMemory as refuse_index does.
std::shared_ptr<const DeviceSelection> upload_key_summaries(const Device& device,
                                                            const AttentionShape& shape,
                                                            const SegmentIndex& index);

/// Returns the bytes that key summaries would take of a device, which need not be there. 0: the
/// host would search.
std::int64_t device_selection_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                    std::int64_t tokens, const DeviceSizes& device);

}  // namespace topkv
