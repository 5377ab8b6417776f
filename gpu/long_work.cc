#include "gpu/long_work.h"

#include <algorithm>

#include "src/core/io/faults.h"

namespace topkv::gpu {

void LongWork::copy_in(const void* host, std::int64_t bytes, std::byte* to) const {
  const auto* from = static_cast<const std::byte*>(host);
  for (std::int64_t first = 0; first < bytes; first += piece_bytes) {
    give([&] { device_.copy_in(from + first, std::min(piece_bytes, bytes - first), to + first); });
  }
}

/// Waits before it takes the lock: what is left to do then is the copy.
void LongWork::copy_out(const std::byte* from, std::int64_t bytes, void* host) {
  wait();
  auto* to = static_cast<std::byte*>(host);
  for (std::int64_t first = 0; first < bytes; first += piece_bytes) {
    give([&] { device_.copy_out(from + first, std::min(piece_bytes, bytes - first), to + first); });
  }
}

void LongWork::upload(const Matrix& host, std::byte* to) const {
  const std::int64_t row = host.in_features * bytes_of(host.dtype);
  const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / row);
  for (std::int64_t first = 0; first < host.out_features; first += most) {
    Matrix some = host;
    some.data += first * row;
    some.out_features = std::min(most, host.out_features - first);
    give([&] { to += device_.upload_bytes(device_.upload(some, to)); });
  }
}

void LongWork::wait() {
  give([&] { given_.record(device_.compute_stream()); });
  reach_fault("long_work.wait");
  given_.synchronize();
}

}  // namespace topkv::gpu
