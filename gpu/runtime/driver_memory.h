// Memory of a CUDA device as its driver counts it, through NVML, the library of nvidia-smi. NVML
// also counts the memory of a process's context and of its libraries' code, which CUDA does not
// report.
//
// NVML is loaded at run time, so that topkv starts without it. Safe from many threads.
#pragma once

#include <cstdint>
#include <optional>

namespace topkv::gpu {

/// The memory that the driver has given out since construction.
class DriverMemory {
 public:
  /// Records the memory in use on the device. It makes no CUDA context.
  explicit DriverMemory(int device);

  /// The bytes taken since construction; empty if NVML is not available. The driver counts all
  /// processes together, because a container cannot tell its own process from others. Memory that
  /// other processes take or free meanwhile disturbs the result.
  std::optional<std::int64_t> taken() const;

 private:
  std::optional<std::int64_t> used() const;

  void* handle_ = nullptr;  // nvmlDevice_t; null: no NVML
  std::optional<std::int64_t> before_;
};

}  // namespace topkv::gpu
