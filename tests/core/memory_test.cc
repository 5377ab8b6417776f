// The memory that the host can give: what the kernel says, and the limits of control groups, read
// from files as a system has them; regions.
#include "src/core/memory/memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "src/core/memory/memory_grant.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t gib = std::int64_t{1} << 30;

/// A root with /proc and /sys of which a test writes what it needs.
class System {
 public:
  System() { file("proc/meminfo", "MemTotal: 999 kB\nMemAvailable:   67108864 kB\n"); }  // 64 GiB

  void file(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    root_.write(name, content);
  }
  /// A group of version 2 that has used so much of its limit; limit 0: none.
  void group(const std::string& path, std::int64_t limit, std::int64_t used,
             std::int64_t cached = 0) const {
    const std::string folder = "sys/fs/cgroup" + path + "/";
    file(folder + "memory.max", limit == 0 ? "max\n" : std::to_string(limit) + "\n");
    file(folder + "memory.current", std::to_string(used) + "\n");
    file(folder + "memory.stat", "anon 5\ninactive_file " + std::to_string(cached) + "\nfile 7\n");
  }
  std::int64_t available() const { return available_host_memory(root_.path()); }

 private:
  TempDirectory root_;
};

TEST(HostMemory, WithoutControlGroupsIsWhatTheKernelCallsAvailable) {
  EXPECT_EQ(System().available(), 64 * gib);
}

TEST(HostMemory, IsLimitedByTheGroupOfThisProcess) {
  const System system;
  system.file("proc/self/cgroup", "0::/user.slice/session-2.scope\n");
  system.group("/user.slice", 0, 30 * gib);
  system.group("/user.slice/session-2.scope", 8 * gib, 3 * gib, gib);
  EXPECT_EQ(system.available(), 6 * gib);
}

TEST(HostMemory, IsLimitedByAnyGroupAbove) {
  const System system;
  system.file("proc/self/cgroup", "0::/a/b/c\n");
  system.group("/a", 10 * gib, 9 * gib);
  system.group("/a/b", 0, 9 * gib);
  system.group("/a/b/c", 8 * gib, gib);
  EXPECT_EQ(system.available(), gib);
}

TEST(HostMemory, InAContainerIsLimitedByTheMountedGroup) {
  const System system;
  system.file("proc/self/cgroup", "0::/\n");
  system.group("", 4 * gib, gib);
  EXPECT_EQ(system.available(), 3 * gib);
}

TEST(HostMemory, AGroupNamedAsTheHostSeesItCountsByItsMount) {
  const System system;
  system.file("proc/self/cgroup", "0::/../docker/abc\n");
  system.group("", 4 * gib, gib);
  EXPECT_EQ(system.available(), 3 * gib);
}

TEST(HostMemory, IsLimitedByGroupsOfVersion1) {
  const System system;
  system.file("proc/self/cgroup", "12:cpu,cpuacct:/jobs/7\n9:rdma,memory:/jobs/7\n0::/jobs/7\n");
  const std::string folder = "sys/fs/cgroup/memory/jobs/";
  system.file(folder + "memory.limit_in_bytes", std::to_string(5 * gib));
  system.file(folder + "memory.usage_in_bytes", std::to_string(3 * gib));
  system.file(folder + "memory.stat", "inactive_file 1\ntotal_inactive_file 1073741824\n");
  system.file(folder + "7/memory.limit_in_bytes", "9223372036854771712\n");
  system.file(folder + "7/memory.usage_in_bytes", std::to_string(3 * gib));
  EXPECT_EQ(system.available(), 3 * gib);
}

TEST(HostMemory, AGroupBeyondItsLimitLeavesNothing) {
  const System system;
  system.file("proc/self/cgroup", "0::/full\n");
  system.group("/full", 4 * gib, 5 * gib);
  EXPECT_EQ(system.available(), 0);
}

TEST(HostMemory, FilesThatMakeNoSenseSetNoLimit) {
  const System system;
  system.file("proc/self/cgroup", "\n::\nnonsense\n0::/odd\n");
  system.file("sys/fs/cgroup/odd/memory.max", "99999999999999999999999\n");
  system.file("sys/fs/cgroup/odd/memory.current", "");
  EXPECT_EQ(system.available(), 64 * gib);
}

TEST(Region, BeginsAtAHugePageAndIsZero) {
  for (const std::int64_t bytes : {std::int64_t{1}, small_page + 1, huge_page, 3 * huge_page + 5}) {
    Region region(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % huge_page, 0U);
    for (const std::int64_t at : {std::int64_t{0}, bytes / 2, bytes - 1})
      EXPECT_EQ(region.data()[at], std::byte{0});
    region.data()[bytes - 1] = std::byte{7};
    region.use_huge_pages();
    EXPECT_EQ(region.data()[bytes - 1], std::byte{7});
  }
}

TEST(Region, MoreThanThereIsAddressSpaceIsRefused) {
  for (const std::int64_t bytes : {std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max()})
    EXPECT_THROW(Region{bytes}, OutOfMemory);
}

/// What a second thread is told that asks for 600 bytes of 1,000 while a first one has a grant of
/// 600, of which it then takes so many. The second looks before that, and must not trust what it
/// sees.
bool second_gets_them(std::int64_t taken_by_first) {
  std::atomic<std::int64_t> taken = 0;
  std::atomic<int> looks = 0;
  const auto available = [&] {
    const std::int64_t free = 1000 - taken;
    ++looks;
    looks.notify_all();
    return free;
  };
  std::optional<MemoryGrant> first;
  first.emplace("the first", 600, available);
  bool got = false;
  std::thread second([&] {
    try {
      const MemoryGrant grant("the second", 600, available);
      got = true;
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.available_bytes(), 1000 - taken_by_first);
    }
  });
  for (int seen = looks; seen < 2; seen = looks) looks.wait(seen);
  taken = taken_by_first;
  first.reset();
  second.join();
  return got;
}

TEST(MemoryGrant, IsNotGivenTwiceOver) {
  EXPECT_FALSE(second_gets_them(600));
  EXPECT_TRUE(second_gets_them(0));  // the first has failed
  EXPECT_THROW(MemoryGrant("all", std::numeric_limits<std::int64_t>::max()), OutOfMemory);
  const MemoryGrant one("one", 600, [] { return std::int64_t{1000}; });
  const MemoryGrant two("two", 400, [] { return std::int64_t{1000}; });
}

}  // namespace
}  // namespace topkv
