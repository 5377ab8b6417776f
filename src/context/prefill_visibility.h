// The earlier tokens that tokens of a prefill may attend, layer by layer.
#pragma once

#include "src/device/device_prefill.h"
#include "topkv/context.h"

namespace topkv {

/// Returns the window of each layer. A layer with a sliding window attends that window; other
/// layers follow `attention`. Throws InvalidArgument for a window below 1 and for negative sinks.
PrefillVisibility prefill_visibility(const AttentionShape& shape,
                                     const PrefillAttention& attention);

}  // namespace topkv
