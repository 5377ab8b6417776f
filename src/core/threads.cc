#include "src/core/threads.h"

#include <omp.h>
#include <oneapi/tbb/task_arena.h>

namespace topkv {

std::int64_t thread_count() { return oneapi::tbb::this_task_arena::max_concurrency(); }

void use_one_openmp_thread() { omp_set_num_threads(1); }

}  // namespace topkv
