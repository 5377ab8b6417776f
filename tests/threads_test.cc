// parallel_for and the OpenMP teams of the application that calls it.
#include "src/core/threads.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>

namespace topkv {
namespace {

TEST(ParallelFor, ItsBodiesHaveOneOpenmpThreadAndTheCallerKeepsItsOwn) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  for (const std::int64_t count : {1, 1000}) {
    std::atomic<int> most = 0;
    parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      parallel_for(end - begin, 1, [](std::int64_t, std::int64_t) {});  // nests
      int seen = most;
      while (seen < omp_get_max_threads() &&
             !most.compare_exchange_weak(seen, omp_get_max_threads()))
        ;
    });
    EXPECT_EQ(most, 1) << count;
    EXPECT_EQ(omp_get_max_threads(), 3) << count;
  }
  omp_set_num_threads(before);
}

TEST(ParallelFor, ItsCallerKeepsItsOpenmpThreadsWhenABodyThrows) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  EXPECT_THROW(parallel_for(1, 1, [](std::int64_t, std::int64_t) { throw 1; }), int);
  EXPECT_THROW(parallel_for(100, 1, [](std::int64_t, std::int64_t) { throw 1; }), int);
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace topkv
