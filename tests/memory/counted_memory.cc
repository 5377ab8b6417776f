#include "tests/memory/counted_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> blocks{0};
std::atomic<std::int64_t> bytes{0};
std::atomic<std::int64_t> allocations_left{-1};  // until one fails; below 0: none does
std::atomic<std::int64_t> mappings_left{-1};
std::atomic<bool> watching{false};
std::atomic<std::int64_t> most{0};  // bytes in use while watching

std::int64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

bool fails(std::atomic<std::int64_t>& left) {
  return left.load(std::memory_order_relaxed) >= 0 && left.fetch_sub(1) == 0;
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails(allocations_left)) return nullptr;
  size = std::max<std::size_t>(size, 1);
  void* memory = alignment == 0 ? std::malloc(size)
                                : std::aligned_alloc(
                                      alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) return nullptr;
  ++blocks;
  bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  if (watching) most = std::max(most.load(), heap_bytes());
  return memory;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  --blocks;
  bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// GCC pairs what it inlines: these are to be calls. Those for arrays end here, too.
[[gnu::noinline]] void* operator new(std::size_t size) { return allocate_or_throw(size, 0); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

extern "C" {
void* __real_mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset);
void* __wrap_mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset) {
  if (fails(mappings_left)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return __real_mmap(at, size, protection, flags, file, offset);
}
}

namespace test {

Counted counted() { return {blocks, bytes}; }

FailingAllocation::FailingAllocation(std::int64_t n) { allocations_left = n; }
FailingAllocation::~FailingAllocation() { allocations_left = -1; }
std::int64_t FailingAllocation::left() { return allocations_left; }

FailingMapping::FailingMapping(std::int64_t n) { mappings_left = n; }
FailingMapping::~FailingMapping() { mappings_left = -1; }
std::int64_t FailingMapping::left() { return mappings_left; }

HeapPeak::HeapPeak() : before_(heap_bytes()) {
  most = before_;
  watching = true;
}
HeapPeak::~HeapPeak() { watching = false; }
std::int64_t HeapPeak::bytes() const { return most - before_; }

}  // namespace test
