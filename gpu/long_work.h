// Work that takes a device longer than a step's: clustering, copies of a whole index. It goes
// piece by piece, and the device's lock is held for a piece at a time, neither between pieces nor
// while they are waited for, so that who decodes on the device meanwhile waits for a piece or two.
//
// One thread at a time, which does not hold the lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/runtime/handles.h"
#include "src/core/io/faults.h"
#include "src/core/math/matrix.h"

namespace topkv::gpu {

class LongWork {
 public:
  /// Of a copy, and of what is to come between two.
  static constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;

  /// Makes the device current in this thread. It outlives this.
  explicit LongWork(CudaDevice& device) : device_(device), given_(event_of(device)) {}

  /// work(): one piece, on the device's compute stream; the lock is held.
  template <class Work>
  void give(const Work& work) const {
    reach_fault("long_work.piece");
    device_.let_others();
    const auto lock = device_.lock();
    work();
  }
  /// As the device's.
  void copy_in(const void* host, std::int64_t bytes, std::byte* to) const;
  void copy_out(const std::byte* from, std::int64_t bytes, void* host);
  /// A plain matrix in the device's operand type (ComputeDevice::upload).
  void upload(const Matrix& host, std::byte* to) const;
  /// Until all that was given is done.
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
