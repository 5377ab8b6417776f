// Key summaries on a device, for selection methods of the literature (index/common/stand_ins.h). By
// them the device itself chooses entries of a context: pages, keys or clusters.
#pragma once

#include <cstdint>

namespace topkv {

/// A device's copy of the key summaries of all layers. ComputeDevice::keep_selection makes it, and
/// EntryChooser::choose of that device reads it. Const members are safe from any thread.
class DeviceSelection {
 public:
  virtual ~DeviceSelection() = default;

  /// Returns the bytes of the device's memory that it takes.
  virtual std::int64_t memory() const = 0;
  /// Returns the most entries of a head that are chosen in a layer to hold k rows. 0: the layer has
  /// no summaries.
  virtual std::int64_t most_entries(std::int64_t layer, std::int64_t k) const = 0;
};

}  // namespace topkv
