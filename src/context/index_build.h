// Making an index of all rows of a segment.
#pragma once

#include <memory>

#include "src/context/segment.h"
#include "topkv/device.h"
#include "topkv/index_spec.h"
#include "topkv/progress.h"

namespace topkv {

/// All heads in parallel; one that the segment has serves where it can. The device makes codes of
/// rows that it can copy quickly, and clusters keys where it has room. REQUIRES: the spec suits the
/// rows (IndexSpec::check). Throws what progress throws, which ends the work.
std::shared_ptr<const SegmentIndex> build_index(const IndexSpec& spec, const AttentionShape& shape,
                                                const Segment& segment, const ProgressFn& progress,
                                                const Device& device);

}  // namespace topkv
