// Parallel loops and tasks on threads of the standard library, in place of oneTBB's, for
// ThreadSanitizer: of a oneTBB that was not built with it, it would report every hand-over of a
// task as a race. Built with TOPKV_STD_THREADS (the preset tsan); nothing is fast here, and nothing
// orders the parts of a loop but its beginning and its end, so that races between them are seen.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <thread>

namespace topkv {

/// Threads of a loop, and what thread_count() says.
inline constexpr std::int64_t std_threads = 3;

/// The contract of parallel_for, for count > grain. A loop within a loop runs on its thread.
void std_parallel_for(std::int64_t count, std::int64_t grain,
                      const std::function<void(std::int64_t, std::int64_t)>& body);

/// Each task has a thread. One thread at a time owns it; tasks do not throw.
class StdTaskGroup {
 public:
  StdTaskGroup() = default;
  StdTaskGroup(const StdTaskGroup&) = delete;  // threads know where it is
  StdTaskGroup& operator=(const StdTaskGroup&) = delete;
  ~StdTaskGroup() { wait(); }

  void run(std::function<void()> task);
  void wait();

 private:
  struct Task {
    std::atomic<bool> done = false;
    std::thread thread;
  };
  std::list<Task> tasks_;
};

}  // namespace topkv
