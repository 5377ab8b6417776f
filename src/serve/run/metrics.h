// What a server has done, in Prometheus' text format.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace topkv::serve {

/// Safe from many threads.
struct Metrics {
  /// Upper bounds of the histogram of sessions in a step.
  static constexpr std::array<std::int64_t, 7> step_bounds = {1, 2, 4, 8, 16, 32, 64};

  std::atomic<std::int64_t> prompt_tokens = 0, kept_tokens = 0, generated_tokens = 0;
  std::atomic<std::int64_t> waiting = 0, running = 0;  ///< answers, now
  std::atomic<std::int64_t> session_bytes = 0;         ///< of rows of running answers, now
  std::atomic<std::int64_t> disconnected = 0;
  std::atomic<double> step_seconds = 0;  ///< one thread adds

  void count_request(const std::string& path, int status, double seconds);
  void count_first_token(double seconds);
  void count_step(std::int64_t sessions, double seconds);

  /// more: lines of other gauges.
  std::string text(const std::string& more) const;

 private:
  struct Sum {
    std::int64_t count = 0;
    double seconds = 0;
  };
  mutable std::mutex mutex_;  // of those below
  std::map<std::pair<std::string, int>, Sum> requests_;
  Sum first_tokens_;
  std::array<std::int64_t, step_bounds.size() + 1> steps_ = {};
  std::int64_t stepped_ = 0;
};

}  // namespace topkv::serve
