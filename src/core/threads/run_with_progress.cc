#include "src/core/threads/run_with_progress.h"

#include <oneapi/tbb/task_arena.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"

namespace topkv {

void run_watched(const std::function<void(const std::stop_token&)>& work,
                 const std::function<void()>& beat) {
  constexpr std::chrono::milliseconds pause(100);
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr of_work;
  std::exception_ptr of_beat;
  std::stop_source stop;
  std::thread worker([&, threads = static_cast<int>(thread_count())] {
    try {
      oneapi::tbb::task_arena arena(threads);
      const std::stop_token token = stop.get_token();
      arena.execute([&] {
        const StopScope scope(&token);
        work(token);
      });
    } catch (...) {
      of_work = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_one();
  });
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, pause, [&] { return ended; });
  };
  try {
    while (!wait()) beat();
  } catch (...) {
    of_beat = std::current_exception();
    stop.request_stop();
  }
  worker.join();
  if (of_beat) std::rethrow_exception(of_beat);
  if (of_work) std::rethrow_exception(of_work);
}

}  // namespace topkv
