// Threads that are awake when there is work: a parallel_for that finds the others asleep waits for
// them longer than small work takes.
#pragma once

#include <oneapi/tbb/task_group.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace topkv {

/// Wakes up other threads of the calling thread's arena when it is made; they wait, busily, until
/// run() or its end. Belongs to one scope of one thread, a short one.
class Helpers {
 public:
  /// So many threads, as far as the arena has them and they are free.
  explicit Helpers(std::int64_t count);
  ~Helpers() { end(); }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  /// Calls work() on this thread, after first(), and on each of the others that is awake by then;
  /// when it returns, all have. An exception of any is rethrown. Once. Work must come to its end on
  /// one thread too.
  template <class First, class Work>
  void run(const First& first, const Work& work) {
    work_ = &work;
    call_ = [](const void* of) { (*static_cast<const Work*>(of))(); };
    state_.store(State::work, std::memory_order_release);
    try {
      first();
      work();
    } catch (...) {
      end();  // others may be at work
      throw;
    }
    state_.store(State::over, std::memory_order_release);
    tasks_.wait();
  }

 private:
  enum class State { waiting, work, over };
  void help() const;
  void end() noexcept;

  std::atomic<State> state_ = State::waiting;
  const void* work_ = nullptr;
  void (*call_)(const void*) = nullptr;
  std::thread::id owner_ = std::this_thread::get_id();
  oneapi::tbb::task_group tasks_;
};

}  // namespace topkv
