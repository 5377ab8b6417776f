// The frame of a decode step on a device: q, k and v come in, and the merged result goes out.
#pragma once

#include <cstdint>

#include "index/common/tail_noise.h"
#include "src/attention/chunk_passes.h"
#include "src/device/tail_figures.h"
#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv {

/// The steps of one session on a device, from q, k and v to the result.
///
/// A step calls begin, then wait_for_inputs, then finish. The other interfaces of the session's
/// backend (decode_backend.h) add partials in between. Positions count the rows of the context
/// first, then the session's own.
///
/// Threads: one thread at a time. On CUDA the caller holds the device's lock in each call except
/// wait_for_inputs. Memory: begin allocates when the session becomes longer than before, or when
/// more sessions step at one time than before. After a call that throws, call ResidentWindow::load.
class DecodeInputs {
 public:
  virtual ~DecodeInputs() = default;

  /// Begins a step: takes q, k and v (float32, in the device's memory) of tokens at position
  /// `first` and on. Without K and V (kv_count 0) the window keeps its rows.
  ///
  /// passes: the positions that the step's queries meet. The caller's attend and scan keep to them,
  /// too. Several: those of one token, in a step that goes ahead (async_scan.h).
  ///
  /// Throws OutOfMemory when rows, or the memory that the step works in, do not fit.
  virtual void begin(const AttentionStep& step, std::int64_t first, const ChunkPasses& passes) = 0;

  /// Waits until the step's tensors are in host memory. Returns the step with q, k and v there,
  /// valid until the step is finished.
  virtual AttentionStep wait_for_inputs() = 0;

  /// Returns room for a partial of [tokens x q_heads] heads in host memory. A partial that lies
  /// there is added without a copy. It is valid from wait_for_inputs on, or from begin on in a step
  /// that goes ahead, until the step is finished. Its contents are left from an earlier step.
  virtual PartialView host_partial_buffer() = 0;

  /// Ends the step: merges the device's partials and the host's, sums up the tail's figures, and
  /// writes out and, when wanted, lse. The caller may change the host's partials on return, except
  /// host_partial_buffer().
  ///
  /// host: partials in host memory, of [tokens x q_heads] heads each: over all rows that the host
  /// attended, and of the tail if the host estimates it.
  virtual void finish(const AttentionStep& step, const TailParts& host) = 0;

  /// Returns the sums over a layer's finished steps with a tail, scans included. Waits for these
  /// steps.
  virtual TailFigures tail_figures(std::int64_t layer) const = 0;
};

}  // namespace topkv
