// The one way that topkv runs things in parallel: oneTBB's arena of the calling thread. (A session
// that a CUDA device scans for has a thread of its own beside, src/session/async_stepper.h, whose
// helpers are as many as the caller's arena allows.)
//
// Libraries beneath (BLAS, FAISS) bring OpenMP teams of their own. Inside a parallel_for they are
// held to one thread each, so that there are never more runnable threads than cores. How many
// threads there are is the application's choice, through tbb::global_control or a tbb::task_arena;
// the command line tool's -t does that.
#pragma once

#include <cstdint>

#include "src/core/threads/stopping.h"

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

/// A reference to the body of a loop, body(begin, end), which the loop does not outlive. Most files
/// of the library have loops: with a template in place of this type each would compile oneTBB.
class LoopBody {
 public:
  template <class Body>
  LoopBody(const Body& body)  // NOLINT(google-explicit-constructor): callers pass their lambdas
      : body_(&body), call_([](const void* of, std::int64_t begin, std::int64_t end) {
          (*static_cast<const Body*>(of))(begin, end);
        }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(body_, begin, end); }

 private:
  const void* body_;
  void (*call_)(const void* of, std::int64_t begin, std::int64_t end);
};

/// Calls body(begin, end) for disjoint ranges that cover [0, count), none shorter than grain if
/// it can be helped. Which thread takes which range is not fixed: results must not depend on it.
/// An exception in a body ends the loop and is rethrown here. Bodies are stopped by what stops the
/// caller (stopping.h). Nests. Where oneTBB leaves bodies out because it has cancelled what the
/// caller is part of (a loop around this one, another of whose bodies has thrown; an application's
/// task group), this throws Stopped: it never returns with work undone.
void parallel_for(std::int64_t count, std::int64_t grain, LoopBody body);

/// The same for callers that hold a lock: a thread that waits in here takes up no other work, which
/// might wait for that lock.
void parallel_for_alone(std::int64_t count, std::int64_t grain, LoopBody body);

}  // namespace topkv
