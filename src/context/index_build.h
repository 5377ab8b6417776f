// Building an index over all rows of a segment.
#pragma once

#include <memory>

#include "src/context/segment.h"
#include "topkv/device.h"
#include "topkv/index_spec.h"
#include "topkv/progress.h"

namespace topkv {

/// Builds an index, all heads in parallel. If another index of the segment can serve with its
/// heads, they are shared.
///
/// device: makes the codes of page-locked rows, and clusters keys if it has room. progress: stage
/// "index", in keys; an exception that it throws ends the work and is rethrown. REQUIRES: the spec
/// suits the rows (IndexSpec::check).
std::shared_ptr<const SegmentIndex> build_index(const IndexSpec& spec, const AttentionShape& shape,
                                                const Segment& segment, const ProgressFn& progress,
                                                const Device& device);

}  // namespace topkv
