// The copies of a context's indices that a device scans, or chooses entries by.
#pragma once

#include <cstdint>
#include <memory>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "src/context/segment.h"
#include "src/device/device_sizes.h"
#include "topkv/device.h"
#include "topkv/session.h"

namespace topkv {

/// Returns the codes of one KV head, as a device takes them. They point to the index, the tail and
/// the rows. tail: null if there is no tail.
HeadCodes codes_of(const CodesIndex& index, const CodeTail* tail, const RowsView& rows);

/// Returns a device's copy of an index: of its codes, if it has codes, else of its key summaries.
/// Null: the device neither scans these codes nor chooses by these summaries.
///
/// Codes are scanned if the index has from 1 to 2^30 keys. The host scans codes where they lie. A
/// CUDA device scans codes of at most 64 bytes a key, and chooses by key summaries, in its own
/// memory. The first call makes that copy. The index keeps it, with the device, while it lives, or
/// until another device asks.
///
/// segment: the segment that the index is over. Safe from many threads, none of which may hold the
/// device's lock. Throws OutOfMemory, with a message that says what to do.
std::shared_ptr<const DeviceIndex> upload_index(const Device& device, const AttentionShape& shape,
                                                const Segment& segment, const SegmentIndex& index);

/// Returns whether these options choose rows, and make a tail, in the way of scans. The tail is
/// then the index's own or none, each query head chooses for itself, and there is no guarantee.
bool can_use_scan(const RetrievalOptions& options);

/// Returns the bytes that upload_index would take of a device, which need not be there. 0: it would
/// make no copy.
std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const DeviceSizes& device);

}  // namespace topkv
