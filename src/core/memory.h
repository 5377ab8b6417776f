// Host memory: what is there, and large zeroed regions on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace topkv {

/// Bytes that can be allocated without swapping: what the kernel calls available, lowered to what
/// the control group leaves.
std::int64_t available_host_memory();

/// Address space reserved in one piece; pages are committed (zeroed) when first touched, as huge
/// pages where the system grants them. Owns its memory.
class Region {
 public:
  Region() = default;
  /// Throws OutOfMemory when the address space is refused.
  explicit Region(std::int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace topkv
