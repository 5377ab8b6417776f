// parallel_for and the OpenMP teams of the application that calls it; helpers.
#include "src/core/threads/threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "src/core/threads/busy_workers.h"
#include "topkv/error.h"

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

#ifndef TOPKV_STD_THREADS  // of oneTBB's cancellation

/// Calls body once, as part of a task group of the application's that has been cancelled.
template <class Body>
void within_a_cancelled_group(const Body& body) {
  oneapi::tbb::task_group_context group;
  std::atomic<int> bodies = 0;
  oneapi::tbb::parallel_for(
      oneapi::tbb::blocked_range<int>(0, 1),
      [&](const oneapi::tbb::blocked_range<int>&) {
        ++bodies;
        group.cancel_group_execution();
        body();
      },
      group);
  EXPECT_EQ(bodies, 1);
}

TEST(ParallelFor, NeverReturnsWithWorkUndone) {
  std::atomic<int> done = 0;
  const auto count = [&](std::int64_t begin, std::int64_t end) { done += int(end - begin); };
  within_a_cancelled_group([&] {
    EXPECT_THROW(parallel_for(100, 1, count), Stopped);
    EXPECT_LT(done, 100);
  });
  done = 0;
  parallel_for(100, 1, count);
  EXPECT_EQ(done, 100);
}

// What they were woken in first has ended since, and may have been cancelled.
TEST(Helpers, ComeWhateverBecameOfTheLoopThatWokeThemFirst) {
  if (thread_count() < 2) GTEST_SKIP() << "takes two threads";
  Helpers helpers;
  within_a_cancelled_group([&] {
    helpers.wake(1);
    helpers.run([] {}, [] {});
  });
  const auto owner = std::this_thread::get_id();
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::atomic<bool> came = false;
  while (!came && std::chrono::steady_clock::now() < patience) {
    helpers.wake(1);
    std::this_thread::yield();
    helpers.run([] {},
                [&] {
                  if (std::this_thread::get_id() != owner) came = true;
                  for (int i = 0; i < 1000 && !came; ++i) std::this_thread::yield();
                });
  }
  EXPECT_TRUE(came);
}

// Nobody would take them up.
TEST(Helpers, AreNotWaitedForWhereOneThreadIsAllowed) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  parallel_for(100, 1, [](std::int64_t, std::int64_t) {});  // the arena has places for more
  EXPECT_EQ(thread_count(), 1);
  auto helpers = std::make_unique<Helpers>();
  helpers->wake(1);
  helpers->run([] {}, [] {});
  std::thread([&] { helpers.reset(); }).join();
}

#endif

TEST(Helpers, WorkIsOverWhenRunReturns) {
  Helpers helpers;
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> next = 0;
    std::atomic<int> done = 0;
    bool first = false;
    helpers.wake(3);
    // Loops beside do not wait for helpers, even where one is given to the thread that owns them.
    parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { next += int(end - begin); });
    EXPECT_EQ(next, 10);
    helpers.run([&] { first = true; },
                [&] {
                  while (next++ < 100) ++done;
                });
    ASSERT_EQ(done, 90);
    EXPECT_TRUE(first);
    EXPECT_FALSE(helpers.awake());
  }
}

TEST(Helpers, AnExceptionOfAnyIsRethrownAndNoneIsNeeded) {
  Helpers helpers;
  for (int round = 0; round < 50; ++round) {
    helpers.wake(3);
    helpers.release();
    std::atomic<int> calls = 0;
    helpers.wake(3);
    EXPECT_THROW(helpers.run([] {},
                             [&] {
                               ++calls;
                               throw std::runtime_error("x");
                             }),
                 std::runtime_error);
    EXPECT_GE(calls, 1);
    const auto owner = std::this_thread::get_id();
    std::atomic<bool> thrown = false;
    std::atomic<bool> over = false;
    helpers.wake(1);
    try {
      helpers.run([] {},
                  [&] {
                    if (std::this_thread::get_id() == owner) {
                      for (int i = 0; i < 100000 && !thrown; ++i) std::this_thread::yield();
                      over = true;
                      return;
                    }
                    thrown = true;
                    throw std::runtime_error("y");
                  });
      EXPECT_FALSE(thrown) << "lost";
    } catch (const std::runtime_error&) {
      EXPECT_TRUE(thrown);
    }
    EXPECT_TRUE(over);
  }
}

}  // namespace
}  // namespace topkv
