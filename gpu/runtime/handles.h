// Owning handles of CUDA objects, and the check of CUDA's return values.
//
// Interfaces take streams and events as CUDA's own types, which do not own. Destructors never
// throw.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace topkv::gpu {

/// Throws Error unless status is success, with the call, CUDA's message and the place. Clears
/// CUDA's sticky error.
void check(cudaError_t status, const char* call, const char* file, int line);

#define TOPKV_CUDA(call) ::topkv::gpu::check((call), #call, __FILE__, __LINE__)

/// A stream that does not wait for the legacy default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;  // owns its stream
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }  // NOLINT: a handle stands for what it owns
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event. A wait for an event that was never recorded returns at once.
class Event {
 public:
  enum class Timing : bool { off, on };
  explicit Event(Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;  // events live as long as the work that they order

  void record(cudaStream_t stream);
  /// Makes later work of the stream wait for the recorded work.
  void block(cudaStream_t stream) const;
  /// Blocks the calling thread until the recorded work is done.
  void synchronize() const;
  /// Whether the recorded work is done.
  bool done() const;
  /// The seconds since `start`. REQUIRES: both events were recorded with timing, and are done.
  double seconds_since(const Event& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Page-locked host memory. Copies between it and the device run at full speed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace topkv::gpu
