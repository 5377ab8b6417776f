// Codes of a context (index/codes/codes_index.h) on the device that scans them.
#pragma once

#include <memory>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "src/context/segment.h"
#include "src/device/device_sizes.h"
#include "topkv/device.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

/// Returns the codes of one KV head, as a device takes them. They point to the index, the tail and
/// the rows. tail: null if there is no tail.
HeadCodes codes_of(const CodesIndex& index, const CodeTail* tail, const RowsView& rows);

/// Returns an index's codes for a device that scans them. Null: the device does not scan these
/// codes.
///
/// The index must have from 1 to 2^30 keys. The host scans codes where they lie. A CUDA device
/// scans codes of at most 64 bytes a key in its own memory. The first call makes that copy. The
/// index keeps it, with the device, while it lives, or until another device asks.
///
/// segment: the segment that the index is over. Safe from many threads, none of which may hold the
/// device's lock. Throws OutOfMemory as refuse_index does.
std::shared_ptr<const DeviceCodes> upload_codes(const Device& device, const AttentionShape& shape,
                                                const Segment& segment, const SegmentIndex& index);

/// Throws OutOfMemory for codes or key summaries that a device has no room for. The message says
/// what to do.
[[noreturn]] void refuse_index(const Device& device, const OutOfMemory& error);

/// Returns whether these options choose rows, and make a tail, in the way of scans. The tail is
/// then the index's own or none, and each query head chooses for itself.
bool can_use_scan(const RetrievalOptions& options);

/// Returns the bytes that codes would take of a device, which need not be there
/// (device_index_bytes). 0: the device would scan no codes.
std::int64_t device_code_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                               std::int64_t tokens, const DeviceSizes& device);

}  // namespace topkv
