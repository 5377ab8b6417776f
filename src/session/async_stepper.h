// Steps that go ahead: the call returns before the rows that a scan lists are attended.
//
// A CUDA device that scans codes for one token lists rows for the host to attend. Waiting for them
// would keep the caller from enqueueing the next layer. A thread of the session attends them
// instead, and the device waits for its result.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "src/session/own_rows_source.h"
#include "src/session/scan_source.h"

namespace topkv {

/// The thread of one session that attends the rows that scans list, with the help of other threads.
/// The caller lets the device begin with the next step meanwhile.
///
/// The thread calls no function of the device's driver. It waits only for work that the device was
/// given before. It therefore goes on whatever the caller waits for.
class AsyncStepper {
 public:
  AsyncStepper(SessionCore& session, ScanSource& scan, const OwnRowsSource& own);
  /// Waits until every step that was given is done.
  ~AsyncStepper();
  AsyncStepper(const AsyncStepper&) = delete;  // the thread knows where it is
  AsyncStepper& operator=(const AsyncStepper&) = delete;

  /// Returns whether a step can go ahead. With one thread alone it cannot: the step's own thread
  /// does all work.
  bool can_step(const AttentionStep& step) const;
  /// Makes a step. The device begins with its scan, and with the work that follows it. Rows join
  /// the session's own when the step before is done, and the step's figures of before are set then.
  /// Nothing is written to the caller's memory before the step is known to be good. Throws Error
  /// when the thread cannot start, or when an earlier step failed.
  void step(Step& step);
  /// Waits for all steps. Throws Error if one failed after its call had returned.
  void settle();
  /// Waits for all steps, after the step `step` failed. The work of that step is dropped.
  void settle_without(const Step& step);

 private:
  using Clock = std::chrono::steady_clock;

  /// A step that was given.
  struct Task {
    ListJob job;
    std::int64_t threads = 1;
    std::int64_t rows = 0;
    Clock::time_point done;
    std::exception_ptr error;
    bool dropped = false;
  };

  void start();
  void give(const ListJob& job, std::int64_t threads);
  Clock::time_point collect_all_but(std::uint64_t last);
  void rethrow();
  void work();
  void run(Task& task, Helpers& helpers) noexcept;
  Task& task(std::uint64_t number) { return tasks_[number % tasks_.size()]; }

  static constexpr std::uint64_t no_more = ~std::uint64_t{0};
  SessionCore& session_;
  ScanSource& scan_;
  const OwnRowsSource& own_;
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
