// The rows of a session that a device attends in any case: sinks and window, a sliding window, or
// all rows of a dense layer.
#pragma once

#include <cstdint>
#include <span>

#include "src/attention/block_attention.h"
#include "topkv/attention.h"

namespace topkv {

/// The window of one session on its device.
///
/// Threads: one thread at a time. On CUDA the caller holds the device's lock.
class ResidentWindow {
 public:
  virtual ~ResidentWindow() = default;

  /// Sets the session's own rows of consecutive layers, from `first_layer` on: [layers, kv_heads].
  /// It is called when the session took tokens back, or took another session's rows; a new session
  /// has no rows. A device copies the rows that are resident there, in bf16, and waits for the
  /// copies. Throws OutOfMemory when there are more rows than ever before and they do not fit.
  virtual void load(std::int64_t first_layer, std::span<const RowSpan> rows) = 0;

  /// Attends the rows of a segment that SessionShape::always_attended names, one span for each KV
  /// head, the step's own rows included: once for each segment, after
  /// DecodeInputs::wait_for_inputs. In a step that goes ahead, before it. The device keeps the
  /// partial until the step's end.
  virtual void attend(std::int64_t layer, std::span<const RowSpan> rows) = 0;

  /// With SessionShape::has_row_rules, after attend of all segments: returns their partials,
  /// merged, in host memory, of [tokens x q_heads] heads. Waits for them, and for scans. The view
  /// is valid until the step is finished and must not be written to.
  virtual PartialView partial() = 0;
};

}  // namespace topkv
