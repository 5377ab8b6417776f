// Memory of a CUDA device under a hard ceiling: everything that topkv takes of a device is
// allocated here and counted, and what would pass the ceiling is refused before CUDA is asked.
//
// Counted are the pages that the driver commits, not the bytes that were asked for: an allocation
// of 1 MiB or more takes whole pages of 2 MiB; smaller ones share pages. The CUDA context and the
// code of its libraries count from the start.
// Ownership: a Buffer gives its memory back when it goes, and keeps the arena alive until then.
// Threads: all members are safe from many threads; allocate leaves the device current in the
// calling thread. Freeing waits for the device's work, as cudaFree
// does, so a buffer may be dropped while work that was begun still uses it.
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

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// Made as a shared_ptr only. ceiling: bytes, of which `libraries` are taken already.
  /// driver: made before the device's context, for memory().driver.
  /// Throws OutOfMemory when the ceiling is below `libraries`.
  static std::shared_ptr<Arena> make(int device, std::int64_t ceiling, std::int64_t libraries,
                                     const DriverMemory& driver);

  /// At least 256-byte aligned, not initialised; 0 bytes give an empty Buffer. May wait for the
  /// device. Throws OutOfMemory, with nothing taken, when the ceiling or the device has no room.
  Buffer allocate(std::int64_t bytes, std::string_view what);

  /// The most that an allocation can add to what is used.
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
  mutable std::mutex mutex_;                   // guards what follows
  std::map<std::string, std::int64_t> items_;  // by what; never emptied of a name
  std::int64_t large_ = 0;                     // bytes of whole pages
  std::int64_t small_ = 0;                     // bytes of what shares pages
  std::int64_t peak_;
};

}  // namespace topkv::gpu
