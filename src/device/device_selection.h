// What stands for the keys of a context on a device, for the selection methods of the literature
// (index/stand_ins.h): kept where the arithmetic is, so that the device chooses entries itself.
#pragma once

#include <cstdint>

namespace topkv {

/// Of all layers. Made by ComputeDevice::keep_selection; used by DecodeBackend::choose of the same
/// device. Const members are safe from any thread.
class DeviceSelection {
 public:
  virtual ~DeviceSelection() = default;

  /// Bytes of the device's memory.
  virtual std::int64_t memory() const = 0;
  /// Entries of a head, at most, that are chosen in a layer to have k rows; 0: it has none.
  virtual std::int64_t most_entries(std::int64_t layer, std::int64_t k) const = 0;
};

}  // namespace topkv
