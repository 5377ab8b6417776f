#include "src/core/memory/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

/// The number after `key` in a file of "key value" lines, or the file's only number; -1 if absent
/// (or "max", as control groups write it).
std::int64_t number_in(const fs::path& path, std::string_view key = {}) {
  std::ifstream file(path);
  if (key.empty()) {
    std::int64_t value = -1;
    return file >> value ? value : -1;
  }
  std::string word;
  while (file >> word) {
    if (word != key) continue;
    std::int64_t value = -1;
    return file >> value ? value : -1;
  }
  return -1;
}

/// What one version of control groups calls things.
struct GroupFiles {
  std::string_view limit, used, cached;
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file"};

/// What the group of this folder leaves; the largest number when it sets no limit.
std::int64_t left_in(const fs::path& group, const GroupFiles& files) {
  const std::int64_t limit = number_in(group / files.limit);
  const std::int64_t used = number_in(group / files.used);
  if (limit < 0 || used < 0) return std::numeric_limits<std::int64_t>::max();
  // Cached file pages count as used but are given back under pressure.
  const std::int64_t cached =
      std::max<std::int64_t>(0, number_in(group / "memory.stat", files.cached));
  return std::max<std::int64_t>(0, limit - std::max<std::int64_t>(0, used - cached));
}

/// The least that a group and those above it leave, up to where groups are mounted. In a container
/// the group may be named as its host sees it, and only the mount's own folder is there.
std::int64_t left_up_to(const fs::path& mount, fs::path group, const GroupFiles& files) {
  std::int64_t left = left_in(mount, files);
  for (; group.has_relative_path(); group = group.parent_path())
    left = std::min(left, left_in(mount / group.relative_path(), files));
  return left;
}

std::int64_t left_by_control_groups(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::int64_t left = left_in(mount, version_2);
  std::ifstream groups(root / "proc/self/cgroup");  // lines "number:controllers:/group"
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number, controllers, group;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, group);
    if (controllers.empty()) {
      left = std::min({left, left_up_to(mount, group, version_2),
                       left_up_to(mount / "unified", group, version_2)});
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      left = std::min(left, left_up_to(mount / "memory", group, version_1));
    }
  }
  return left;
}

}  // namespace

std::int64_t available_host_memory(const fs::path& root) {
  const std::int64_t kib = number_in(root / "proc/meminfo", "MemAvailable:");
  const std::int64_t available = kib < 0 ? std::numeric_limits<std::int64_t>::max() : kib * 1024;
  return std::min(available, left_by_control_groups(root));
}

Region::Region(std::int64_t bytes) {
  if (bytes == 0) return;
  const auto refuse = [bytes] {
    throw OutOfMemory(
        "host address space", bytes, available_host_memory(),
        "the system refused the reservation; raise its limit (ulimit -v) or ask for less");
  };
  if (bytes > std::numeric_limits<std::int64_t>::max() - huge_page) refuse();
  const auto reserved = static_cast<std::size_t>(bytes + huge_page);
  void* memory = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) refuse();
  // What lies before the first boundary of a huge page, and what is left behind, goes back.
  auto* begin = static_cast<std::byte*>(memory);
  const std::size_t before =
      static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(begin)) % huge_page;
  const std::size_t kept =
      (static_cast<std::size_t>(bytes) + small_page - 1) / small_page * small_page;
  if (before > 0) munmap(begin, before);
  if (const std::size_t behind = reserved - before - kept; behind > 0)
    munmap(begin + before + kept, behind);
  data_ = begin + before;
  bytes_ = bytes;
  madvise(data_, static_cast<std::size_t>(bytes), MADV_NOHUGEPAGE);  // a wish, as below
}

void Region::use_huge_pages() {
  if (data_ != nullptr) madvise(data_, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
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
