// Steps that go ahead: the call returns before the rows that a scan lists are attended.
//
// A CUDA device that scans codes for one token lists rows for the host to attend. Waiting for them
// would keep the caller from enqueueing the next layer. A thread of the session attends them
// instead, and the device waits for its result.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "src/session/session_state.h"

namespace topkv {

/// The thread of one session that attends the rows that scans list, with the help of other threads.
/// The caller lets the device begin with the next step meanwhile.
///
/// The thread calls no function of the device's driver. It waits only for work that the device was
/// given before. It therefore goes on whatever the caller waits for.
class Session::State::AsyncStepper {
 public:
  explicit AsyncStepper(State& of);
  /// Waits until every step that was given is done.
  ~AsyncStepper();
  AsyncStepper(const AsyncStepper&) = delete;  // the thread knows where it is
  AsyncStepper& operator=(const AsyncStepper&) = delete;

  /// Starts the thread, unless it runs. To be called before the first step. Throws Error when there
  /// is no thread.
  void start();
  /// Gives the thread a step that goes ahead, whose scan has begun. threads: the number of threads
  /// that may work on it. REQUIRES: start was called, and at most one step that was given before is
  /// not collected.
  void give(const SessionStep& part, std::int64_t threads);
  /// Waits for all steps that were given except the last `last` ones, and adds their counts and
  /// times to the session's. Returns when the last of them was done. Safe from many threads.
  Clock::time_point collect_all_but(std::uint64_t last);
  /// Drops the last step that was given, if it is the step of `part`: its counts and its failure
  /// are ignored.
  void drop(const SessionStep& part);
  /// Returns the first exception of the steps that were collected, once. Null: none failed.
  std::exception_ptr take_error();

 private:
  /// A step that was given.
  struct Task {
    SessionStep part;
    std::int64_t threads = 1;
    ListTimes times;
    std::int64_t rows = 0;
    Clock::time_point done;
    std::exception_ptr error;
    bool dropped = false;
  };

  void work();
  void run(Task& task, Helpers& helpers) noexcept;
  Task& task(std::uint64_t number) { return tasks_[number % tasks_.size()]; }

  static constexpr std::uint64_t no_more = ~std::uint64_t{0};
  State& of_;
  std::array<Task, 2> tasks_;
  std::uint64_t count_ = 0;  // number of tasks that were given
  std::mutex collecting_;    // protects the next three members
  std::uint64_t collected_ = 0;
  Clock::time_point last_done_;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> given_ = 0;  // count_, or no_more
  std::atomic<std::uint64_t> done_ = 0;
  std::thread thread_;
};

}  // namespace topkv
