// Memory of a CUDA device under a hard ceiling. All device memory of topkv is allocated here and
// counted. An allocation beyond the ceiling is refused before CUDA is asked.
//
// The arena counts the pages that the driver commits, not the bytes requested. An allocation of 1
// MiB or more takes whole pages of 2 MiB; smaller ones share pages. The CUDA context and the code
// of its libraries count from the start.
//
// Ownership: a Buffer frees its memory when it is destroyed, and keeps the arena alive until then.
// Threads: all members are safe from many threads. allocate leaves the device current in the
// calling thread. Freeing waits for the device's work, as cudaFree does, so that a buffer may be
// dropped while work still uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpu/runtime/driver_memory.h"
#include "src/device/compute_device.h"
#include "topkv/device.h"

namespace topkv::gpu {

/// The memory of one device.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// Makes an arena. ceiling: bytes, which include the `libraries` bytes in use already. driver:
  /// made before the device's context, for memory().driver. Throws OutOfMemory if the ceiling is
  /// below `libraries`.
  static std::shared_ptr<Arena> make(int device, std::int64_t ceiling, std::int64_t libraries,
                                     const DriverMemory& driver);

  /// Allocates memory, not initialised and at least 256-byte aligned. 0 bytes give an empty Buffer.
  /// what: the name of the memory in memory() and in errors. May wait for the device. Throws
  /// OutOfMemory, and allocates nothing, if the ceiling or the device has too little memory.
  Buffer allocate(std::int64_t bytes, std::string_view what);

  /// The most bytes that an allocation of `bytes` bytes can add to the count.
  static std::int64_t most_counted(std::int64_t bytes);

  DeviceMemory memory() const;
  std::int64_t ceiling() const { return ceiling_; }

 private:
  Arena(int device, std::int64_t ceiling, std::int64_t libraries, const DriverMemory& driver);
  void release(std::byte* data, std::int64_t bytes, const std::string& what) noexcept;
  void count(std::int64_t bytes, const std::string& what);
  std::int64_t used() const;

  const int device_;
  const std::int64_t ceiling_;
  const std::int64_t libraries_;
  const DriverMemory driver_;
  mutable std::mutex mutex_;                   // guards the members below
  std::map<std::string, std::int64_t> items_;  // bytes by name; a name is never removed
  std::int64_t large_ = 0;                     // bytes of allocations in whole pages
  std::int64_t small_ = 0;                     // bytes of allocations that share pages
  std::int64_t peak_;
};

}  // namespace topkv::gpu
