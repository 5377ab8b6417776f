// The machine's limits, measured in the run that is compared with them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace bench {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Median seconds of several runs after one that is not counted.
inline double median_seconds(int runs, const std::function<void()>& work) {
  work();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) seconds.push_back(seconds_of(work));
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<std::size_t>(runs / 2)];
}

/// Bytes per second that all threads together read from memory, streaming.
double read_bandwidth();

/// Floating-point operations per second of the library's float32 product of large square
/// matrices, one per thread.
double matmul_peak();

}  // namespace bench
