#include "gpu/runtime/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "gpu/runtime/handles.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t mib = 1 << 20;
constexpr std::int64_t page = 2 * mib;     // of the driver
constexpr std::int64_t least_large = mib;  // bytes from which an allocation has its own pages
constexpr std::int64_t small_unit = 512;   // what smaller ones are rounded up to
constexpr std::int64_t most_counted_bytes = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool is_large(std::int64_t bytes) { return bytes >= least_large; }

/// What an allocation takes of its kind of pages.
std::int64_t counted(std::int64_t bytes) {
  return round_up(bytes, is_large(bytes) ? page : small_unit);
}

std::string raise_to(std::int64_t bytes) {
  return fmt::format("raise --gpu-mem to at least {}MiB", round_up(bytes, mib) / mib);
}

}  // namespace

std::shared_ptr<Arena> Arena::make(int device, std::int64_t ceiling, std::int64_t libraries,
                                   const DriverMemory& driver) {
  if (ceiling < libraries) {
    throw OutOfMemory(
        fmt::format("device memory for the CUDA context and libraries of cuda:{}", device),
        libraries, ceiling, raise_to(libraries + page));
  }
  return std::shared_ptr<Arena>(new Arena(device, ceiling, libraries, driver));
}

Arena::Arena(int device, std::int64_t ceiling, std::int64_t libraries, const DriverMemory& driver)
    : device_(device),
      ceiling_(ceiling),
      libraries_(libraries),
      driver_(driver),
      peak_(libraries) {}

// A small one may be what begins a page.
std::int64_t Arena::most_counted(std::int64_t bytes) { return round_up(bytes, page); }

Buffer Arena::allocate(std::int64_t bytes, std::string_view what) {
  if (bytes < 0) {
    throw InvalidArgument(
        fmt::format("device memory for {}: {} bytes, expected 0 or more", what, bytes));
  }
  if (bytes == 0) return {};
  std::string name(what);
  Buffer::Free free = [arena = shared_from_this(), name](std::byte* data, std::int64_t size) {
    arena->release(data, size, name);
  };

  const std::lock_guard lock(mutex_);
  const std::int64_t before = used();
  count(std::min(bytes, most_counted_bytes), name);
  const std::int64_t after = used();
  try {
    if (after > ceiling_) {
      throw OutOfMemory(
          fmt::format("device memory for {} under a ceiling of {} bytes", what, ceiling_), bytes,
          ceiling_ - before, raise_to(after));
    }
    TOPKV_CUDA(cudaSetDevice(device_));
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t left = 0;
      std::size_t total = 0;
      TOPKV_CUDA(cudaMemGetInfo(&left, &total));
      throw OutOfMemory(
          fmt::format("memory of cuda:{} for {}, within the ceiling", device_, what), bytes,
          static_cast<std::int64_t>(left),
          "end other programs that use the device, or lower --gpu-mem so that less is planned");
    }
    TOPKV_CUDA(status);
    peak_ = std::max(peak_, after);
    return {static_cast<std::byte*>(data), bytes, std::move(free)};
  } catch (...) {
    count(-std::min(bytes, most_counted_bytes), name);
    throw;
  }
}

// Memory is counted until it is free, so that the count is never below the truth.
void Arena::release(std::byte* data, std::int64_t bytes, const std::string& what) noexcept {
  cudaFree(data);  // of any device; at the process's end the driver may be gone already
  const std::lock_guard lock(mutex_);
  count(-bytes, what);
}

/// bytes < 0: given back.
void Arena::count(std::int64_t bytes, const std::string& what) {
  const std::int64_t size = std::abs(bytes);
  const std::int64_t change = bytes < 0 ? -counted(size) : counted(size);
  items_[what] += change;
  (is_large(size) ? large_ : small_) += change;
}

std::int64_t Arena::used() const { return libraries_ + large_ + round_up(small_, page); }

DeviceMemory Arena::memory() const {
  DeviceMemory memory;
  memory.ceiling = ceiling_;
  memory.libraries = libraries_;
  memory.driver = driver_.taken().value_or(0);
  const std::lock_guard lock(mutex_);
  memory.used = used();
  memory.peak = peak_;
  memory.items.push_back({"CUDA context and libraries", libraries_});
  for (const auto& [what, bytes] : items_) {
    if (bytes > 0) memory.items.push_back({what, bytes});
  }
  const std::int64_t rest = round_up(small_, page) - small_;
  if (rest > 0) memory.items.push_back({"rest of shared pages", rest});
  return memory;
}

}  // namespace topkv::gpu
