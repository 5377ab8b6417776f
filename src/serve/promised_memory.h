// Host memory that is free now but promised: rows of sessions and of contexts being read are
// committed as they come.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/core/memory.h"

namespace topkv::serve {

/// Safe from many threads, as atomics are: two who ask at once may both be told the same.
struct PromisedMemory {
  std::atomic<std::int64_t> sessions = 0;
  std::atomic<std::int64_t> contexts = 0;

  /// What can be promised still.
  std::int64_t left() const { return available_host_memory() - sessions - contexts; }
};

}  // namespace topkv::serve
