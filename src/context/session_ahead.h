// A session's steps that go ahead of their lists.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "src/context/session_state.h"

namespace topkv {

/// A thread that attends what scans list for a session's steps, with others' help, while the
/// session's caller has the device begin with the next step. It calls nothing of a device's driver,
/// and waits for nothing but what the device has been given before: whatever the caller waits for,
/// it goes on.
class Session::State::Ahead {
 public:
  explicit Ahead(State& of);
  /// What was given comes to its end first.
  ~Ahead();
  Ahead(const Ahead&) = delete;  // the thread knows where it is
  Ahead& operator=(const Ahead&) = delete;

  /// Before the first step. Throws Error when there is no thread to be had.
  void start();
  /// A step that goes ahead, whose scan has begun. threads: that may work on it. REQUIRES: started;
  /// of the steps given before, one at most was not collected.
  void give(const Part& part, std::int64_t threads);
  /// Waits for the steps given but the last so many, and adds what they did to the session's
  /// figures. Gives when the last of these was done. Safe from many threads.
  Clock::time_point collect_all_but(std::uint64_t last);
  /// What the last step given does, or meets, goes for nothing, if it was this one.
  void drop(const Part& part);
  /// What steps that were collected threw, the first of them, once.
  std::exception_ptr take_error();

 private:
  struct Task {
    Part part;
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
  std::uint64_t count_ = 0;  // of tasks that were given
  std::mutex collecting_;    // what follows
  std::uint64_t collected_ = 0;
  Clock::time_point last_done_;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> given_ = 0;  // count_, or no_more
  std::atomic<std::uint64_t> done_ = 0;
  std::thread thread_;
};

}  // namespace topkv
