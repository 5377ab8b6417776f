// A device's copy of rows of a context.
#pragma once

#include <cstdint>

namespace topkv {

/// The rows of some layers of a context in a device's memory, as they are stored. A device that
/// scans attends the rows that it finds in these layers itself. Immutable.
class RowCopy {
 public:
  virtual ~RowCopy() = default;

  /// Returns whether it has the rows that a layer attends.
  virtual bool has(std::int64_t layer) const = 0;
  /// Returns the device memory that it takes, in bytes.
  virtual std::int64_t memory() const = 0;
};

}  // namespace topkv
