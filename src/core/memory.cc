#include "src/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "topkv/error.h"

namespace topkv {
namespace {

/// The number after `key` in a file of "key value" lines, or the file's only number; -1 if absent
/// (or "max", as control groups write it).
std::int64_t number_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty())
      return word.find_first_not_of("0123456789") == std::string::npos ? std::stoll(word) : -1;
    if (word == key) {
      std::int64_t value = -1;
      return file >> value ? value : -1;
    }
  }
  return -1;
}

}  // namespace

std::int64_t available_host_memory() {
  const std::int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
  std::int64_t available = kib < 0 ? std::numeric_limits<std::int64_t>::max() : kib * 1024;
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current", "");
  if (limit >= 0 && used >= 0) {
    // Cached file pages count as used but are given back under pressure.
    const std::int64_t cached =
        std::max<std::int64_t>(0, number_in("/sys/fs/cgroup/memory.stat", "inactive_file"));
    available = std::min(available, std::max<std::int64_t>(0, limit - used + cached));
  }
  return available;
}

Region::Region(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw OutOfMemory(
        "host address space", bytes, available_host_memory(),
        "the system refused the reservation; raise its limit (ulimit -v) or ask for less");
  }
  data_ = static_cast<std::byte*>(memory);
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a wish: may be refused
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace topkv
