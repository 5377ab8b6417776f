// Tasks beside their owner, on threads of oneTBB. Few files need these, and oneTBB's headers take
// long to compile: threads.h has none of them.
#pragma once

#include <oneapi/tbb/task_group.h>

#include <utility>

#ifdef TOPKV_STD_THREADS
#include "src/core/threads/std_threads.h"
#endif

namespace topkv {

/// Tasks that run beside their owner, who waits for them before this goes. They are no part of what
/// the owner is part of: that may end, or be cancelled, before they do.
#ifdef TOPKV_STD_THREADS
using TaskGroup = StdTaskGroup;
#else
class TaskGroup {
 public:
  template <class Task>
  void run(Task task) {
    tasks_.run(std::move(task));
  }
  void wait() { tasks_.wait(); }

 private:
  oneapi::tbb::task_group_context context_{oneapi::tbb::task_group_context::isolated};
  oneapi::tbb::task_group tasks_{context_};
};
#endif

}  // namespace topkv
