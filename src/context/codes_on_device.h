// Giving a device the codes of a context (index/codes_index.h).
#pragma once

#include <memory>
#include <string_view>

#include "index/code_tail.h"
#include "index/codes_index.h"
#include "src/context/segment.h"
#include "src/device/device_sizes.h"
#include "topkv/device.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

/// RetrievalOptions::tail of a session that has none.
inline constexpr std::string_view no_tail = "none";

/// What a device is given of one head; tail: null: none. It points to what it was made of.
HeadCodes codes_of(const CodesIndex& index, const CodeTail* tail, const RowsView& rows);

/// The index's codes where the device scans them; null: it does not. The host scans those of at
/// least one key and at most 2^30 where they lie. A CUDA device scans such of up to 64 bytes a key
/// in its memory: made at the first call and kept, with the device, while the index lives, unless
/// another one asks. segment: the index's. Safe from many threads, of which none holds the device's
/// lock. Throws OutOfMemory, as refuse_index does.
std::shared_ptr<const DeviceCodes> codes_on(const Device& device, const AttentionShape& shape,
                                            const Segment& segment, const SegmentIndex& index);

/// Throws what a device had no room for, with what to do.
[[noreturn]] void refuse_index(const Device& device, const OutOfMemory& error);

/// Whether rows are chosen, and a tail made, as scans do it: no other tail, each query head for
/// itself.
bool chooses_by_scan(const RetrievalOptions& options);

/// Bytes that they would take of a device that need not be there (device_index_bytes); 0: it scans
/// none.
std::int64_t device_code_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                               std::int64_t tokens, const DeviceSizes& device);

}  // namespace topkv
