// Owning handles of CUDA objects, and the one check of CUDA's return values.
//
// Streams and events are passed as CUDA's own types, which do not own. Teardown never throws.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace topkv::gpu {

/// Throws Error naming the call, CUDA's words and the place unless status is success; clears
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

/// An event. Waiting for one that was never recorded returns at once.
class Event {
 public:
  enum class Timing : bool { off, on };
  explicit Event(Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;  // events live as long as what they order

  void record(cudaStream_t stream);
  /// Work given to the stream from now on waits for what was recorded.
  void block(cudaStream_t stream) const;
  /// The calling thread waits.
  void synchronize() const;
  bool done() const;
  /// Seconds since `start`; both must have been recorded with timing, and be done.
  double seconds_since(const Event& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Page-locked host memory, which copies to and from the device read at full speed.
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
