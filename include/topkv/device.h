// Where the arithmetic of a network runs: the host's cores, or a CUDA device under a memory
// ceiling.
//
// A Device is a shared handle: copies mean the same device, whose memory lives until the last
// model, context and session made on it is gone. Rows of contexts stay in host memory either way.
//
// Threads: all members are safe from many threads. Sessions of one CUDA device take turns on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

class ComputeDevice;

/// One line of a plan or of an account of device memory.
struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
};

/// Bytes of a CUDA device; all 0 for the host.
struct DeviceMemory {
  std::int64_t ceiling = 0;  ///< what topkv may take in all
  std::int64_t libraries =
      0;                    ///< of it, taken by the CUDA context and kept for its libraries' code
  std::int64_t used = 0;    ///< allocated now, libraries included
  std::int64_t peak = 0;    ///< the most that was allocated at a time, libraries included
  std::int64_t driver = 0;  ///< what this process takes as the driver has it; 0: not known
  std::vector<MemoryItem> items = {};  ///< what `used` consists of
};

class Device {
 public:
  /// The host's cores. Always there.
  Device();

  /// spec: "cpu"; "cuda" or "cuda:N", the first or Nth CUDA device; "auto", the first CUDA device
  /// when there is one that can be used, else the host.
  /// memory_ceiling: bytes that topkv may take of the device's memory, the CUDA context included;
  /// 0: nine tenths of what is free. No effect on the host.
  /// Throws InvalidArgument for another spec, Unsupported when there is no such device (saying why:
  /// built without CUDA, no driver, too old), OutOfMemory when the ceiling leaves no room.
  static Device open(std::string_view spec, std::int64_t memory_ceiling = 0);

  bool is_cuda() const;
  /// "host", "NVIDIA H200 (cuda:0)".
  std::string name() const;
  DeviceMemory memory() const;

  /// For topkv itself.
  const std::shared_ptr<ComputeDevice>& compute() const { return compute_; }

 private:
  explicit Device(std::shared_ptr<ComputeDevice> compute);
  std::shared_ptr<ComputeDevice> compute_;  // never null
};

}  // namespace topkv
