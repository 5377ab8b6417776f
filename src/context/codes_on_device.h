// Giving a device the codes of a context (index/codes_index.h).
#pragma once

#include <memory>

#include "index/code_tail.h"
#include "index/codes_index.h"
#include "src/context/index_growth.h"
#include "src/device/compute_device.h"
#include "src/store/row_store.h"

namespace topkv {

/// What a device is given of one head; tail: null: none. It points to what it was made of.
HeadCodes codes_of(const CodesIndex& index, const CodeTail* tail, const RowsView& rows);

/// Whether these are codes that devices scan: 16 bytes a key, of at least one key and at most 2^30.
bool can_be_scanned(const GrownIndex& index);

/// REQUIRES: can_be_scanned(index), device.scans_codes(shape). Throws OutOfMemory.
std::shared_ptr<const DeviceCodes> keep_codes(ComputeDevice& device, const AttentionShape& shape,
                                              const GrownIndex& index, const RowStore& store);

}  // namespace topkv
