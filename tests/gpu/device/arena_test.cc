// Device memory under its ceiling, and the opening of devices.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/support/needs_gpu.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t mib = 1 << 20;
constexpr std::int64_t ceiling = 3072 * mib;
constexpr std::int64_t page = 2 * mib;  // that large allocations are made of

std::int64_t item(const DeviceMemory& memory, const std::string& what) {
  for (const MemoryItem& each : memory.items) {
    if (each.what == what) return each.bytes;
  }
  return 0;
}

std::int64_t sum_of_items(const DeviceMemory& memory) {
  return std::accumulate(memory.items.begin(), memory.items.end(), std::int64_t{0},
                         [](std::int64_t sum, const MemoryItem& each) { return sum + each.bytes; });
}

TEST(Arena, CountsWhatIsAllocatedAndFreedAndThePeak) {
  TOPKV_NEEDS_GPU();
  const auto device = open_gpu(0, ceiling);
  const DeviceMemory before = device->memory();
  EXPECT_EQ(before.ceiling, ceiling);
  EXPECT_GT(before.libraries, 0);
  EXPECT_GE(before.used, before.libraries);
  EXPECT_EQ(sum_of_items(before), before.used);
  {
    const Buffer rows = device->allocate(63 * mib + 1, "rows");
    const Buffer more = device->allocate(4 * mib, "rows");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.data()) % 256, 0U);
    EXPECT_EQ(rows.bytes(), 63 * mib + 1);
    const DeviceMemory during = device->memory();
    EXPECT_EQ(during.used, before.used + 68 * mib);  // whole pages
    EXPECT_EQ(item(during, "rows"), 68 * mib);
    EXPECT_EQ(sum_of_items(during), during.used);
    EXPECT_EQ(during.peak, during.used);
  }
  const DeviceMemory after = device->memory();
  EXPECT_EQ(after.used, before.used);
  EXPECT_EQ(item(after, "rows"), 0);
  EXPECT_EQ(after.peak, before.used + 68 * mib);
}

TEST(Arena, SmallAllocationsSharePages) {
  TOPKV_NEEDS_GPU();
  const auto device = open_gpu(0, ceiling);
  const std::int64_t before = device->memory().used;
  std::vector<Buffer> buffers;
  for (int i = 0; i < 256; ++i) {
    buffers.push_back(device->allocate(16 * 1024 - 1, "norms"));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 256, 0U);
  }
  const DeviceMemory during = device->memory();
  EXPECT_EQ(item(during, "norms"), 4 * mib);
  EXPECT_LE(during.used - before, 4 * mib + page);
  EXPECT_GE(during.used - before, 4 * mib - page);
  EXPECT_EQ(sum_of_items(during), during.used);
  EXPECT_EQ(device->allocate(0, "nothing").data(), nullptr);
}

TEST(Arena, RefusesWhatWouldPassTheCeilingAndTakesNothing) {
  TOPKV_NEEDS_GPU();
  const auto device = open_gpu(0, ceiling);
  const DeviceMemory before = device->memory();
  const std::int64_t left = before.ceiling - before.used;
  for (const std::int64_t wanted : {left + 1, ceiling, std::int64_t{1} << 62}) {
    try {
      device->allocate(wanted, "a million rows");
      ADD_FAILURE() << wanted << " bytes were given";
    } catch (const OutOfMemory& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.wanted_bytes(), wanted);
      EXPECT_EQ(error.available_bytes(), left);
      EXPECT_NE(text.find("a million rows"), std::string::npos) << text;
      const std::size_t remedy = text.find("raise --gpu-mem to at least ");
      ASSERT_NE(remedy, std::string::npos) << text;
      if (wanted < std::int64_t{1} << 60) {
        const std::int64_t enough = std::stoll(text.substr(remedy + 28)) * mib;
        EXPECT_GE(enough, before.used + wanted);
        EXPECT_LT(enough, before.used + wanted + page + mib);
      }
    }
  }
  const DeviceMemory after = device->memory();
  EXPECT_EQ(after.used, before.used);
  EXPECT_EQ(after.peak, before.peak);
  // All that is left can still be had, and then nothing more.
  const Buffer rest = device->allocate(left / page * page, "rest");
  EXPECT_THROW(device->allocate(page, "one page more"), OutOfMemory);
  EXPECT_LE(device->memory().used, ceiling);
}

// The account keeps 192 MiB for code that libraries load later, some of which is not loaded yet or
// never; 64 MiB more for the driver's own bookkeeping.
TEST(Arena, AgreesWithTheDriver) {
  TOPKV_NEEDS_GPU();
  const auto device = open_gpu(0, ceiling);
  const DeviceMemory before = device->memory();
  if (before.driver == 0) GTEST_SKIP() << "the driver cannot be asked (no NVML)";
  const Buffer half = device->allocate(512 * mib, "half");
  const DeviceMemory after = device->memory();
  EXPECT_NEAR(static_cast<double>(after.driver - before.driver),
              static_cast<double>(after.used - before.used), 8.0 * mib);
  EXPECT_NEAR(static_cast<double>(after.driver), static_cast<double>(after.used), 256.0 * mib);
}

TEST(Arena, ABufferMayOutliveItsDevice) {
  TOPKV_NEEDS_GPU();
  Buffer buffer;
  {
    const auto device = open_gpu(0, ceiling);
    buffer = device->allocate(8 * mib, "left over");
  }
  buffer = Buffer();
  EXPECT_EQ(item(open_gpu(0, ceiling)->memory(), "left over"), 0);
}

TEST(OpenGpu, GivesTheOneDeviceThatIsOpen) {
  TOPKV_NEEDS_GPU();
  auto device = open_gpu(0, ceiling);
  EXPECT_EQ(open_gpu(0, ceiling), device);
  EXPECT_TRUE(device->is_cuda());
  EXPECT_NE(device->name().find("(cuda:0)"), std::string::npos) << device->name();
  try {
    open_gpu(0, 2 * ceiling);
    ADD_FAILURE() << "opened with another ceiling";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(ceiling)), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(open_gpu(0, 0), InvalidArgument);
  device.reset();
  device = open_gpu(0, 0);  // nine tenths of what is free
  EXPECT_EQ(open_gpu(0, device->memory().ceiling), device);
  EXPECT_GT(device->memory().ceiling, device->memory().used);
}

TEST(OpenGpu, NamesDevicesThatAreNotThereAndCeilingsThatLeaveNoRoom) {
  TOPKV_NEEDS_GPU();
  EXPECT_THROW(open_gpu(gpu_count(), ceiling), Unsupported);
  EXPECT_THROW(open_gpu(-1, ceiling), Unsupported);
  EXPECT_THROW(open_gpu(0, mib), OutOfMemory);
  EXPECT_NO_THROW(open_gpu(0, ceiling));
  EXPECT_EQ(gpu_reason(), "");
}

TEST(OpenGpu, WithoutADeviceSaysWhy) {
  if (gpu_count() > 0) GTEST_SKIP() << "there is a device";
  EXPECT_NE(gpu_reason(), "");
  try {
    open_gpu(0, ceiling);
    ADD_FAILURE() << "opened a device that is not there";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find(gpu_reason()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace topkv
