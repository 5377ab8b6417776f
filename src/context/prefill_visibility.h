// What tokens may attend in a prefill, layer by layer.
#pragma once

#include "src/device/device_prefill.h"
#include "topkv/context.h"

namespace topkv {

/// Layers with a sliding window attend that, the others as `attention` says. Throws InvalidArgument
/// on a window below 1 or negative sinks.
PrefillVisibility prefill_visibility(const AttentionShape& shape,
                                     const PrefillAttention& attention);

}  // namespace topkv
