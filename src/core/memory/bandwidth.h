// What the machine's memory gives, measured: the floor under everything that reads rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "src/core/math/vector_math.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"

namespace topkv {

/// Bytes per second that all threads together read from host memory, streaming: the median of
/// five passes over 1 GiB, far beyond the caches. Takes that memory for as long as it runs.
inline double read_bandwidth() {
  constexpr std::int64_t floats = std::int64_t{1} << 28;
  constexpr std::int64_t piece = 1 << 16;
  constexpr int passes = 5;
  const std::vector<float> memory(static_cast<std::size_t>(floats), 1.0F);
  std::atomic<std::int64_t> ones{0};
  std::vector<double> seconds;
  for (int pass = 0; pass <= passes; ++pass) {
    const Stopwatch watch;
    parallel_for(floats / piece, 16, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t seen = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        seen += max_of(memory.data() + i * piece, piece) == 1.0F;
      }
      ones += seen;
    });
    if (pass > 0) seconds.push_back(watch.seconds());  // the first warms up
  }
  std::nth_element(seconds.begin(), seconds.begin() + passes / 2, seconds.end());
  return ones > 0 ? static_cast<double>(floats) * sizeof(float) / seconds[passes / 2] : 0;
}

}  // namespace topkv
