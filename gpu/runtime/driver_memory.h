// Memory of a CUDA device as its driver has it, asked of NVML (the library beneath nvidia-smi). It
// knows what CUDA itself does not tell: what a process's context and its libraries' code take.
//
// NVML is loaded at run time, so that topkv starts without it. Safe from many threads.
#pragma once

#include <cstdint>
#include <optional>

namespace topkv::gpu {

class DriverMemory {
 public:
  /// Notes what the device's memory is taken by now; makes no CUDA context.
  explicit DriverMemory(int device);

  /// Bytes that were taken since construction; none where NVML cannot be asked. The driver counts
  /// all processes together (it names them by ids that a container cannot tell for its own), so
  /// others that take or give back memory meanwhile disturb this.
  std::optional<std::int64_t> taken() const;

 private:
  std::optional<std::int64_t> used() const;

  void* handle_ = nullptr;  // nvmlDevice_t; null: no NVML
  std::optional<std::int64_t> before_;
};

}  // namespace topkv::gpu
