// Linked into the tests when they run under ThreadSanitizer. oneTBB is not built with it, so every
// hand-over of a task between oneTBB's threads would be reported as a race. With one thread per
// arena there is none: the library's own loops run on other threads then
// (src/core/threads/std_threads.h), and the tests' own threads, each with an arena, run side by
// side as ever.

#include <oneapi/tbb/global_control.h>

namespace {
const oneapi::tbb::global_control one_thread(oneapi::tbb::global_control::max_allowed_parallelism,
                                             1);
}  // namespace
