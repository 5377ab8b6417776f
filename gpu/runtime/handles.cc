#include "gpu/runtime/handles.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "gpu/runtime/faults.h"
#include "topkv/error.h"

namespace topkv::gpu {

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(fmt::format("CUDA: {} ({}) in {} at {}:{}", cudaGetErrorString(status),
                          cudaGetErrorName(status), call,
                          std::filesystem::path(file).filename().string(), line));
}

Stream::Stream() { TOPKV_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::synchronize() const { TOPKV_CUDA(cudaStreamSynchronize(stream_)); }

Event::Event(Timing timing) {
  TOPKV_CUDA(cudaEventCreateWithFlags(
      &event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming));
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

void Event::record(cudaStream_t stream) { TOPKV_CUDA(cudaEventRecord(event_, stream)); }
void Event::block(cudaStream_t stream) const {
  if (Faults::drop_waits.load(std::memory_order_relaxed)) return;
  TOPKV_CUDA(cudaStreamWaitEvent(stream, event_, 0));
}
void Event::synchronize() const { TOPKV_CUDA(cudaEventSynchronize(event_)); }

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  TOPKV_CUDA(status);
  return true;
}

double Event::seconds_since(const Event& start) const {
  float milliseconds = 0;
  TOPKV_CUDA(cudaEventElapsedTime(&milliseconds, start.event_, event_));
  return double{milliseconds} / 1e3;
}

PinnedBuffer::PinnedBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory("page-locked host memory", bytes, 0,
                      "free host memory, or raise the limit of locked memory");
  }
  TOPKV_CUDA(status);
  data_ = static_cast<std::byte*>(data);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace topkv::gpu
