// The progress of a session's scans on the device. The device writes it to page-locked memory, and
// host threads wait for it there.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "gpu/runtime/handles.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// Threads: one thread calls begin() and end(). The waits spin, and are safe from many threads. A
/// wait throws Error if the device ends the scan, or stops, without the awaited value.
class ScanProgress {
 public:
  using Wait = CodeScanner::Wait;

  /// Call this before a scan is enqueued.
  void begin() { over_ = false; }
  /// Call this after the whole scan is enqueued on the stream.
  void end(cudaStream_t stream) { listed_.record(stream); }

  /// Implements AsyncScan::release_abandoned_waiters.
  void release_abandoned_waiters();

  /// Waits until `place`, in page-locked memory, holds the number of the step.
  void wait_for_turn(int& place, int turn, Wait wait);

  /// Implements CodeScanner::drain_list for a list of ScanWorkspace. most: the capacity of the
  /// list, in rows.
  void drain_list(int* list, std::int64_t most, Wait wait, ArrivingRows& rows);

 private:
  template <class Is, class Use>
  int wait_for(int& place, const Is& is, Wait wait, const Use& while_waiting);

  std::atomic<bool> over_ = false;  // the last scan has ended, or the device has stopped
  Event listed_;
};

}  // namespace topkv::gpu
