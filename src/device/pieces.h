// Pieces of one block of memory: their offsets, one behind the other, so that an owner allocates
// once.
#pragma once

#include <cstdint>

namespace topkv {

/// Assigns offsets, each aligned to 256 bytes, to pieces of one block of memory.
class Pieces {
 public:
  static constexpr std::int64_t alignment = 256;

  /// Returns the bytes of the block that a piece takes.
  static constexpr std::int64_t rounded(std::int64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// Adds a piece, and returns its offset.
  std::int64_t place(std::int64_t bytes) {
    const std::int64_t at = used_;
    used_ += rounded(bytes);
    return at;
  }
  /// Returns the bytes of all pieces so far.
  std::int64_t used() const { return used_; }

 private:
  std::int64_t used_ = 0;
};

}  // namespace topkv
