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

  /// Makes room for the session's own rows up to position `end`; those that it has end at `begin`
  /// at most. Throws OutOfMemory, and leaves all as it was.
  virtual void reserve(std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// Takes the rows of a step that was attended without this window. first: the position of its
  /// first token. The step's tensors are in the device's memory. REQUIRES: reserve() has made room
  /// for them.
  virtual void add(const AttentionStep& /*step*/, std::int64_t /*first*/) {}

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
