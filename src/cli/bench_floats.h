// Values in a device's memory, for what `topkv bench` gives to sessions and prefills.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/compute_device.h"

namespace topkv::cli {

class DeviceFloats {
 public:
  DeviceFloats(ComputeDevice& device, std::size_t count)
      : device_(device),
        buffer_(device.allocate(static_cast<std::int64_t>(count * sizeof(float)), "bench")) {}

  float* data() const { return buffer_.floats(); }
  /// REQUIRES: no more values than there is room for.
  void fill(const std::vector<float>& from) {
    device_.copy_in(from.data(), static_cast<std::int64_t>(from.size() * sizeof(float)),
                    buffer_.data());
  }

 private:
  ComputeDevice& device_;
  Buffer buffer_;
};

}  // namespace topkv::cli
