#include "gpu/runtime/staging.h"

namespace topkv::gpu {

Staging::Staging(cudaStream_t stream)
    : stream_(stream), ring_(piece_bytes * pieces), copied_(static_cast<std::size_t>(pieces)) {}

std::byte* Staging::next() const {
  copied_[static_cast<std::size_t>(current_)].synchronize();
  return ring_.data() + current_ * piece_bytes;
}

void Staging::begin_copy(std::int64_t bytes, std::byte* device) {
  TOPKV_CUDA(cudaMemcpyAsync(device, ring_.data() + current_ * piece_bytes,
                             static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_));
  copied_[static_cast<std::size_t>(current_)].record(stream_);
  current_ = (current_ + 1) % pieces;
}

}  // namespace topkv::gpu
