#include "src/core/threads/threads.h"

#include <omp.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <mutex>

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

}  // namespace topkv
