// Making calls fail at every place where they can, and counting those places.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "src/core/io/faults.h"

namespace test {

/// While one lives, the n-th place that is reached throws: bad_alloc, an exception that nobody
/// expects there, or what is given; n = 0: none does. One at a time.
class FailingAt {
 public:
  using Fail = void (*)();

  explicit FailingAt(
      std::int64_t n, Fail fail = [] { throw std::bad_alloc(); }) {
    left = n;
    fails = fail;
    topkv::fault_hook = [](const char* /*place*/) {
      if (left.fetch_sub(1) == 1) fails();
    };
  }
  ~FailingAt() { topkv::fault_hook = nullptr; }
  FailingAt(const FailingAt&) = delete;  // belongs to one scope
  FailingAt& operator=(const FailingAt&) = delete;

  /// Places reached so far beyond the n-th.
  static std::int64_t reached_after() { return -left; }

 private:
  static inline std::atomic<std::int64_t> left{0};
  static inline Fail fails = nullptr;
};

/// Calls `run` with a failure at each place that it reaches, one place after the other, until it
/// comes through without. Returns how many there were.
template <class Run>
std::int64_t fail_everywhere(const Run& run) {
  for (std::int64_t n = 1;; ++n) {
    const FailingAt failing(n);
    run(n);
    if (FailingAt::reached_after() < 0) return n - 1;  // the n-th was not reached
  }
}

}  // namespace test
