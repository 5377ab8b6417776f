// The way of host data to the device: through a ring of pieces of page-locked memory, so that it
// copies at full speed from any memory, and that memory may be changed as soon as a call returns.
//
// One thread at a time. Waits only when every piece of the ring is still being copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/runtime/handles.h"

namespace topkv::gpu {

class Staging {
 public:
  /// stream: what the copies are ordered on; outlives this.
  explicit Staging(cudaStream_t stream);

  /// Copies `bytes` bytes to `device`, piece by piece: fill(to, first, count) writes bytes
  /// [first, first + count) of them to host memory; first is a multiple of 16.
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

  /// The piece to be filled, which no copy reads any more.
  std::byte* next() const;
  /// Begins the copy of that piece and goes on to the one after it.
  void begin_copy(std::int64_t bytes, std::byte* device);

  cudaStream_t stream_;
  PinnedBuffer ring_;
  std::vector<Event> copied_;  // [pieces]
  std::int64_t current_ = 0;
};

}  // namespace topkv::gpu
