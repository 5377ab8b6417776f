// The process's own operator new, and mmap as the library calls it: what is allocated is counted,
// and one allocation or mapping can be made to fail. Link counted_memory.cc, with the linker's
// option --wrap=mmap.
#pragma once

#include <cstdint>

namespace test {

/// Blocks of operator new that live, and their bytes.
struct Counted {
  std::int64_t blocks = 0, bytes = 0;
  bool operator==(const Counted&) const = default;
};
Counted counted();

/// While one lives, the n-th allocation (from 0) from now on throws bad_alloc; below 0: none. Of
/// any thread. One at a time.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::int64_t n);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;  // belongs to one scope
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  /// Those to come before it; below 0 once it has failed.
  static std::int64_t left();
};

/// Likewise the n-th mmap, as of a system that has no more memory to give.
class FailingMapping {
 public:
  explicit FailingMapping(std::int64_t n);
  ~FailingMapping();
  FailingMapping(const FailingMapping&) = delete;  // belongs to one scope
  FailingMapping& operator=(const FailingMapping&) = delete;
  static std::int64_t left();
};

/// The most bytes of the heap, malloc's own among them, that any allocation while this lives has
/// found in use, beyond those at its beginning. One at a time.
class HeapPeak {
 public:
  HeapPeak();
  ~HeapPeak();
  HeapPeak(const HeapPeak&) = delete;  // belongs to one scope
  HeapPeak& operator=(const HeapPeak&) = delete;
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};

}  // namespace test
