// The memory of this process.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace topkv {

/// The most host memory that the process has held so far, in bytes.
inline std::int64_t peak_memory_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

}  // namespace topkv
