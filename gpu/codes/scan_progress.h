// How far the device is with a session's scans: what it writes in page-locked memory on its way,
// for which threads wait.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "gpu/runtime/handles.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// begin and end by one thread. Waits are busy, and safe from many threads; they throw Error when
/// the device comes to the end of a scan, or stops, without what they wait for.
class ScanProgress {
 public:
  using Wait = CodeScanner::Wait;

  /// A scan is to be given to the device.
  void begin() { over_ = false; }
  /// All of it has been given to the stream.
  void end(cudaStream_t stream) { listed_.record(stream); }

  /// As AsyncScan::release_abandoned_waiters.
  void release_abandoned_waiters();

  /// Waits until a step's turn is at the place.
  void wait_for_turn(int& place, int turn, Wait wait);

  /// As CodeScanner::drain_list, of a list of ScanWorkspace; most: it has room for so many rows.
  void drain_list(int* list, std::int64_t most, Wait wait,
                  const std::function<void(std::int32_t)>& on_row,
                  const std::function<bool()>& while_waiting);

 private:
  template <class Is, class Use>
  int wait_for(int& place, const Is& is, Wait wait, const Use& while_waiting);

  std::atomic<bool> over_ = false;  // the last scan is, or the device: nothing more is written
  Event listed_;
};

}  // namespace topkv::gpu
