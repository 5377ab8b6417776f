// The earlier tokens that tokens of a prefill may attend, layer by layer.
#pragma once

#include <cstdint>

#include "src/device/device_prefill.h"
#include "topkv/context.h"

namespace topkv {

/// Tokens up to which an automatic prefill on a CUDA device is dense.
inline constexpr std::int64_t longest_dense_on_cuda = 32768;

/// Returns what each layer attends. A layer with a sliding window attends that window; other layers
/// follow `attention`. Throws InvalidArgument for an automatic mode and for numbers that are out of
/// their range.
PrefillVisibility prefill_visibility(const AttentionShape& shape,
                                     const PrefillAttention& attention);

}  // namespace topkv
