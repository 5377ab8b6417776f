// Work that takes a device longer than a step: clustering, copies of a whole index. It runs in
// pieces. The device's lock is held while a piece is enqueued, and not while a piece is waited for.
// Sessions that decode meanwhile wait for one or two pieces.
//
// Threads: one at a time, which does not hold the lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/runtime/handles.h"
#include "src/core/io/faults.h"
#include "src/core/math/matrix.h"

namespace topkv::gpu {

/// The pieces of one long work.
class LongWork {
 public:
  /// The most bytes of one copy, and of the data of one piece.
  static constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;

  /// Makes the device current in this thread. The device must outlive it.
  explicit LongWork(CudaDevice& device) : device_(device), given_(event_of(device)) {}

  /// Runs work() with the device's lock held. work() enqueues one piece on the device's compute
  /// stream.
  template <class Work>
  void give(const Work& work) const {
    reach_fault("long_work.piece");
    device_.let_others();
    const auto lock = device_.lock();
    work();
  }
  /// Copies host memory to the device, like CudaDevice::copy_in, in pieces.
  void copy_in(const void* host, std::int64_t bytes, std::byte* to) const;
  /// Copies device memory to the host, like CudaDevice::copy_out, in pieces.
  void copy_out(const std::byte* from, std::int64_t bytes, void* host);
  /// Uploads a plain matrix in the device's operand type, in pieces (ComputeDevice::upload).
  void upload(const Matrix& host, std::byte* to) const;
  /// Waits until all pieces are done.
  void wait();

 private:
  static Event event_of(CudaDevice& device) {
    const auto lock = device.lock();
    return Event();
  }

  CudaDevice& device_;
  Event given_;
};

}  // namespace topkv::gpu
