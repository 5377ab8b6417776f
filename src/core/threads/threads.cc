#include "src/core/threads/threads.h"

#include <omp.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <mutex>

#include "topkv/error.h"

#ifdef TOPKV_STD_THREADS
#include "src/core/threads/std_threads.h"
#endif

// There when the process has OpenBLAS, null otherwise.
extern "C" {
__attribute__((weak)) void openblas_set_num_threads(int threads);
__attribute__((weak)) int openblas_get_num_threads();
}

namespace topkv {
namespace {

std::mutex blas_mutex;
int blas_holders = 0;
int blas_threads_before = 0;

}  // namespace

OneBlasThread::OneBlasThread() {
  if (openblas_set_num_threads == nullptr || openblas_get_num_threads == nullptr) return;
  const std::lock_guard lock(blas_mutex);
  if (blas_holders++ > 0) return;
  blas_threads_before = openblas_get_num_threads();
  openblas_set_num_threads(1);
}

OneBlasThread::~OneBlasThread() {
  if (openblas_set_num_threads == nullptr || openblas_get_num_threads == nullptr) return;
  const std::lock_guard lock(blas_mutex);
  if (--blas_holders == 0) openblas_set_num_threads(blas_threads_before);
}

std::int64_t thread_count() {
#ifdef TOPKV_STD_THREADS
  return std_threads;
#else
  // An arena has as many places as it was made with, whatever the process allows.
  const auto allowed = oneapi::tbb::global_control::active_value(
      oneapi::tbb::global_control::max_allowed_parallelism);
  return std::min<std::int64_t>(oneapi::tbb::this_task_arena::max_concurrency(),
                                static_cast<std::int64_t>(allowed));
#endif
}

OneOpenmpThread::OneOpenmpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }

OneOpenmpThread::~OneOpenmpThread() { omp_set_num_threads(before_); }

void parallel_for(std::int64_t count, std::int64_t grain, LoopBody body) {
  if (count <= 0) return;
  if (count <= grain) {
    const OneOpenmpThread one;
    body(0, count);
    return;
  }
  const std::stop_token* stop = current_stop;
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const OneOpenmpThread one;
    const StopScope scope(stop);
    body(begin, end);
  };
#ifdef TOPKV_STD_THREADS
  std_parallel_for(count, grain, part);
#else
  oneapi::tbb::task_group_context context;
  oneapi::tbb::parallel_for(
      oneapi::tbb::blocked_range<std::int64_t>(0, count, static_cast<std::size_t>(grain)),
      [&](const oneapi::tbb::blocked_range<std::int64_t>& range) {
        part(range.begin(), range.end());
      },
      context);
  if (context.is_group_execution_cancelled())
    throw Stopped("stopped: the oneTBB task group of the caller was cancelled");
#endif
}

void parallel_for_alone(std::int64_t count, std::int64_t grain, LoopBody body) {
  oneapi::tbb::this_task_arena::isolate([&] { parallel_for(count, grain, body); });
}

}  // namespace topkv
