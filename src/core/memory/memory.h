// Host memory: what is there, and large zeroed regions on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace topkv {

inline constexpr std::int64_t small_page = 4096;
inline constexpr std::int64_t huge_page = std::int64_t{2} << 20;

/// Bytes that can be allocated without swapping: what the kernel calls available, lowered to what
/// the control groups of this process leave, its own and those above it.
/// root: of the file system that /proc and /sys are read from.
std::int64_t available_host_memory(const std::filesystem::path& root = "/");

/// Address space reserved in one piece; pages are committed (zeroed) when first touched. These are
/// small pages until use_huge_pages. Owns its memory, which begins at a multiple of huge_page.
class Region {
 public:
  Region() = default;
  /// Throws OutOfMemory when the address space is refused.
  explicit Region(std::int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  /// Pages that are committed from now on are huge ones, where the system grants them: for arrays
  /// of several times that size, of which a page more or less does not matter.
  void use_huge_pages();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace topkv
