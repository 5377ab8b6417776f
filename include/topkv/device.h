// A device: the place where the arithmetic of a network runs. It is the host's cores, or a CUDA
// device whose memory topkv uses up to a ceiling. Rows of contexts stay in host memory either way.
//
//     auto device = topkv::Device::open("auto", 16LL << 30);  // a GPU, up to 16 GiB of it, or the
//     host
//
// Ownership: a Device is a shared handle. Copies mean one device, whose memory lives until the last
// model, context and session that was made on it is gone.
//
// Threads: all members are safe from many threads. Sessions on one CUDA device take turns on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

class ComputeDevice;

/// One line of a plan, or of an account of device memory.
struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
};

/// Memory of a CUDA device, in bytes. All members are 0 for the host.
struct DeviceMemory {
  std::int64_t ceiling = 0;    ///< the most that topkv may take in all
  std::int64_t libraries = 0;  ///< the part that the CUDA context takes, and that is kept for the
                               ///< code of CUDA's libraries
  std::int64_t used = 0;       ///< allocated now, with `libraries`
  std::int64_t peak = 0;       ///< the largest value that `used` has had
  std::int64_t driver = 0;     ///< memory of this process, as the driver counts it; 0: unknown
  std::vector<MemoryItem> items = {};  ///< the parts that `used` consists of
};

/// A handle to the host's cores or to a CUDA device. Copies mean one device. All members are safe
/// from many threads.
class Device {
 public:
  /// Makes a handle to the host's cores, which are always there.
  Device();

  /// Opens a device.
  ///
  /// spec is one of these:
  /// - "cpu": the host's cores;
  /// - "cuda": the first CUDA device;
  /// - "cuda:N": the CUDA device with the number N, counted from 0;
  /// - "auto": the first CUDA device if one can be used, else the host's cores.
  ///
  /// memory_ceiling: the bytes that topkv may take of the device's memory, CUDA context included. 0
  /// means nine tenths of the free memory. It has no effect on the host.
  ///
  /// A device that is open already is shared: open returns the device that there is. The ceiling
  /// must then be the one that the device was opened with, or its ceiling in bytes.
  ///
  /// Throws:
  /// - InvalidArgument for another spec, a negative ceiling, or a device that is open with another
  ///   ceiling;
  /// - Unsupported when there is no such device; the message says why, such as a build without
  ///   CUDA, a missing or old driver, or a device below compute capability 8.0;
  /// - OutOfMemory when the ceiling leaves no room.
  static Device open(std::string_view spec, std::int64_t memory_ceiling = 0);

  /// Returns whether this is a CUDA device.
  bool is_cuda() const;
  /// Returns the name: "host", or "NVIDIA H200 (cuda:0)" for example.
  std::string name() const;
  /// Returns the account of the device's memory. All bytes are 0 for the host.
  DeviceMemory memory() const;

  /// For topkv itself: the implementation.
  const std::shared_ptr<ComputeDevice>& compute() const { return compute_; }

 private:
  explicit Device(std::shared_ptr<ComputeDevice> compute);
  std::shared_ptr<ComputeDevice> compute_;  // never null
};

}  // namespace topkv
