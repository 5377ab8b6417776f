#include "src/core/threads/std_threads.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace topkv {
namespace {

thread_local bool in_loop = false;

}  // namespace

void std_parallel_for(std::int64_t count, std::int64_t grain,
                      const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (in_loop) return body(0, count);
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    in_loop = true;
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    in_loop = false;
  };
  const std::int64_t parts = std::min(std_threads, (count + grain - 1) / grain);
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < parts; ++i)
    threads.emplace_back(run, count * i / parts, count * (i + 1) / parts);
  run(0, count / parts);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

void StdTaskGroup::run(std::function<void()> task) {
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    it->thread.join();
    it = tasks_.erase(it);
  }
  Task& added = tasks_.emplace_back();
  added.thread = std::thread([&done = added.done, task = std::move(task)] {
    task();
    done = true;
  });
}

void StdTaskGroup::wait() {
  for (Task& task : tasks_) task.thread.join();
  tasks_.clear();
}

}  // namespace topkv
