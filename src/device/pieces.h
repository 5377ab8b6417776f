// Laying pieces of memory out behind each other, so that their owner allocates once.
#pragma once

#include <cstdint>

namespace topkv {

/// Hands out offsets, each aligned to 256 bytes, for pieces of one block of memory.
class Pieces {
 public:
  static constexpr std::int64_t alignment = 256;

  /// What a piece takes of the block.
  static constexpr std::int64_t rounded(std::int64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// Offset of the next piece.
  std::int64_t place(std::int64_t bytes) {
    const std::int64_t at = used_;
    used_ += rounded(bytes);
    return at;
  }
  /// Bytes of all pieces so far.
  std::int64_t used() const { return used_; }

 private:
  std::int64_t used_ = 0;
};

}  // namespace topkv
