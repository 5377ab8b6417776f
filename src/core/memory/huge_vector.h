// Arrays that are read from end to end, on huge pages: fewer translations of addresses, and a
// processor's prefetching stops at the end of a page.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "src/core/memory/memory.h"

namespace topkv {

/// Memory of arrays of several huge pages, from these where the system grants them; others lie
/// where malloc puts them.
template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>& /*other*/) {}

  T* allocate(std::size_t count) {
    constexpr auto page = static_cast<std::size_t>(huge_page);
    if (count > static_cast<std::size_t>(-1) / sizeof(T) / 2) throw std::bad_alloc();
    const std::size_t bytes = count * sizeof(T);
    if (bytes < 4 * page) return check(std::malloc(bytes));
    const std::size_t whole = (bytes + page - 1) / page * page;
    T* memory = check(std::aligned_alloc(page, whole));
    madvise(memory, whole, MADV_HUGEPAGE);  // a wish
    return memory;
  }
  void deallocate(T* memory, std::size_t /*count*/) { std::free(memory); }

  friend bool operator==(const HugePages& /*a*/, const HugePages& /*b*/) { return true; }

 private:
  static T* check(void* memory) {
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
};

template <class T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace topkv
