// The one way that topkv runs things in parallel: oneTBB's arena of the calling thread. (A session
// that a CUDA device scans for has a thread of its own beside, src/session/async_stepper.h, whose
// helpers are as many as the caller's arena allows.)
//
// Libraries beneath (BLAS, FAISS) bring OpenMP teams of their own. Inside a parallel_for they are
// held to one thread each, so that there are never more runnable threads than cores. How many
// threads there are is the application's choice, through tbb::global_control or a tbb::task_arena;
// the command line tool's -t does that.
#pragma once

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include <cstdint>
#include <utility>

#include "src/core/threads/stopping.h"

#ifdef TOPKV_STD_THREADS
#include "src/core/threads/std_threads.h"
#endif

namespace topkv {

/// Threads that a parallel_for of this thread would use.
std::int64_t thread_count();

/// While one lives, OpenMP regions started by the calling thread run on that thread. Put back when
/// it goes: the thread may be the application's, which has OpenMP teams of its own (PyTorch).
class OneOpenmpThread {
 public:
  OneOpenmpThread();
  ~OneOpenmpThread();
  OneOpenmpThread(const OneOpenmpThread&) = delete;  // belongs to one scope

 private:
  int before_;
};

/// While one lives, OpenBLAS, if it is the BLAS beneath FAISS and LAPACK, computes on the calling
/// thread alone: its own threads are none of OpenMP's. The setting is the process's; it is put back
/// when the last one goes.
class OneBlasThread {
 public:
  OneBlasThread();
  ~OneBlasThread();
  OneBlasThread(const OneBlasThread&) = delete;  // belongs to one scope
  OneBlasThread& operator=(const OneBlasThread&) = delete;
};

/// Calls body(begin, end) for disjoint ranges that cover [0, count), none shorter than grain if
/// it can be helped. Which thread takes which range is not fixed: results must not depend on it.
/// An exception in a body ends the loop and is rethrown here. Bodies are stopped by what stops the
/// caller (stopping.h). Nests. Where oneTBB leaves bodies out because it has cancelled what the
/// caller is part of (a loop around this one, another of whose bodies has thrown; an application's
/// task group), this throws Stopped: it never returns with work undone.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0) return;
  if (count <= grain) {
    const OneOpenmpThread one;
    body(std::int64_t{0}, count);
    return;
  }
  const std::stop_token* stop = current_stop;
#ifdef TOPKV_STD_THREADS
  std_parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    const OneOpenmpThread one;
    const StopScope scope(stop);
    body(begin, end);
  });
#else
  oneapi::tbb::task_group_context context;
  oneapi::tbb::parallel_for(
      oneapi::tbb::blocked_range<std::int64_t>(0, count, static_cast<std::size_t>(grain)),
      [&](const oneapi::tbb::blocked_range<std::int64_t>& range) {
        const OneOpenmpThread one;
        const StopScope scope(stop);
        body(range.begin(), range.end());
      },
      context);
  if (context.is_group_execution_cancelled())
    throw Stopped("stopped: the oneTBB task group of the caller was cancelled");
#endif
}

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

/// The same for callers that hold a lock: a thread that waits in here takes up no other work, which
/// might wait for that lock.
template <class Body>
void parallel_for_alone(std::int64_t count, std::int64_t grain, const Body& body) {
  oneapi::tbb::this_task_arena::isolate([&] { parallel_for(count, grain, body); });
}

}  // namespace topkv
