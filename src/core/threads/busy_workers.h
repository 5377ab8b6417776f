// Threads that are awake when there is work: a parallel_for that finds the others asleep waits for
// them longer than small work takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "src/core/threads/task_group.h"

namespace topkv {

/// Other threads of the arena of whoever calls, one caller at a time.
class Helpers {
 public:
  Helpers() = default;
  ~Helpers() noexcept;
  Helpers(const Helpers&) = delete;  // threads know where it is
  Helpers& operator=(const Helpers&) = delete;

  /// Wakes up so many threads, as far as the arena has them and they are free. They wait, busily,
  /// until run() or release(), one of which must follow soon. REQUIRES: those before were released.
  void wake(std::int64_t count);
  bool awake() const { return awake_; }

  /// Calls work() on this thread, after first(), and on each of the others that is awake by then;
  /// when it returns, all have, and are released. An exception of any is rethrown. Work must come
  /// to its end on one thread too.
  template <class First, class Work>
  void run(const First& first, const Work& work) {
    work_ = &work;
    call_ = [](const void* of) { (*static_cast<const Work*>(of))(); };
    error_ = nullptr;
    state_ = turn_ + working;
    try {
      first();
      work();
    } catch (...) {
      release();
      throw;
    }
    release();
    if (error_) std::rethrow_exception(error_);
  }

  /// Lets them go; waits for those at work.
  void release() noexcept;

 private:
  /// Tasks that threads take up, and how many were not yet.
  struct Coming {
    TaskGroup tasks;
    std::atomic<std::int64_t> count = 0;
  };

  void help();

  // A turn is from one wake to the next. A thread that comes late helps with what there is then.
  static constexpr std::uint64_t waiting = 0, working = 1, over = 2, next_turn = 4;
  std::uint64_t turn_ = 0;  // a multiple of next_turn
  bool awake_ = false;
  std::atomic<std::uint64_t> state_ = over;  // turn_, and what threads of this turn are to do
  std::atomic<std::int64_t> busy_ = 0;       // threads that may be at work
  const void* work_ = nullptr;
  void (*call_)(const void*) = nullptr;
  std::mutex mutex_;
  std::exception_ptr error_;  // of a thread at work, the first
  Coming coming_;             // threads that were woken and are not here yet
  // The same of watched work (run_watched), which leaves its arena when it has ended: what nobody
  // took up there would never be.
  Coming watched_;
};

}  // namespace topkv
