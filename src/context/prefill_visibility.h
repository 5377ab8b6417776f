// The earlier tokens that tokens of a prefill may attend, layer by layer.
#pragma once

#include <cstdint>
#include <string>

#include "src/device/device_prefill.h"
#include "src/device/device_sizes.h"
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

/// What a prefill may take of a device's memory, and what decides how much it takes.
struct PrefillRoom {
  std::int64_t bytes = 0;     ///< of the device's memory, for attention alone
  KvDType rows = {};          ///< how rows are stored
  std::int64_t chunk = 0;     ///< the most tokens of a step
  std::int64_t capacity = 0;  ///< tokens that rows are reserved for; 0: not known, and not counted
};

/// Returns resolve_prefill()'s answer. An automatic mode that becomes sparse on a CUDA device is
/// dense instead if a sparse prefill takes more memory than there is room.
PrefillAttention fitting_prefill(const PrefillAttention& attention, const AttentionShape& shape,
                                 std::int64_t tokens, const DeviceSizes& device,
                                 const PrefillRoom& room);

}  // namespace topkv
