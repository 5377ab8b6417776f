// The earlier tokens that tokens of a prefill may attend, layer by layer.
#pragma once

#include <cstdint>
#include <string>

#include "src/device/device_prefill.h"
#include "topkv/context.h"

namespace topkv {

/// Tokens up to which an automatic prefill is dense: what a sparse one gains is little there.
inline constexpr std::int64_t longest_dense_on_host = 8192;
inline constexpr std::int64_t longest_dense_on_cuda = 32768;

/// Returns why the host or a CUDA device cannot read a text in sparse mode, with what to do; empty
/// if it can. `attention` gives the numbers of the sparse mode; its own mode does not count.
std::string sparse_refusal(const AttentionShape& shape, const PrefillAttention& attention,
                           bool on_cuda);

/// Returns what each layer attends. A layer with a sliding window attends that window; other layers
/// follow `attention`.
///
/// Throws InvalidArgument for an automatic mode and for numbers that are out of their range. Throws
/// Unsupported as resolve_prefill does.
PrefillVisibility prefill_visibility(const AttentionShape& shape, const PrefillAttention& attention,
                                     bool on_cuda);

}  // namespace topkv
