// Copies host data to the device through a ring of pieces of page-locked memory. Copies run at full
// speed from any memory, and the caller may change its memory when a call returns.
//
// Threads: one at a time. A call waits only if all pieces of the ring are still being copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/runtime/handles.h"

namespace topkv::gpu {

/// A ring of pieces, for one stream.
class Staging {
 public:
  /// stream: the stream of the copies, which must outlive it.
  explicit Staging(cudaStream_t stream);

  /// Copies `bytes` bytes to `device`, piece by piece. fill(to, first, count) writes bytes [first,
  /// first + count) of the data to host memory; first is a multiple of 16.
  template <class Fill>
  void send(std::int64_t bytes, std::byte* device, const Fill& fill) {
    for (std::int64_t first = 0; first < bytes; first += piece_bytes) {
      const std::int64_t count = std::min(piece_bytes, bytes - first);
      std::byte* piece = next();
      fill(piece, first, count);
      begin_copy(count, device + first);
    }
  }

 private:
  static constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;
  static constexpr std::int64_t pieces = 16;

  /// The next piece, once no copy reads it.
  std::byte* next() const;
  /// Begins the copy of the current piece, and moves to the next one.
  void begin_copy(std::int64_t bytes, std::byte* device);

  cudaStream_t stream_;
  PinnedBuffer ring_;
  std::vector<Event> copied_;  // [pieces]
  std::int64_t current_ = 0;
};

}  // namespace topkv::gpu
