// Saving and loading while each allocation in turn fails: nothing is lost, and the next call works.
#include "topkv/context_file.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cstdint>
#include <new>
#include <optional>

#include "src/core/io/file_calls.h"
#include "tests/memory/counted_memory.h"
#include "tests/support/context_file_case.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::bytes_of_file;
using test::file_shape;
using test::saved_context;

/// Has allocations counted from a call on files on. (Before, and between, descriptions are made and
/// parsed: nlohmann's JSON asserts in its destructors when memory was wanting.)
class CountingFrom : public FileCalls {
 public:
  /// From the first open, or the pread of this number.
  CountingFrom(std::int64_t n, std::int64_t pread) : n_(n), preads_(pread) { use_file_calls(this); }
  ~CountingFrom() override { use_file_calls(nullptr); }
  bool reached() const { return failing_ && ::test::FailingAllocation::left() < 0; }

  int open(const char* path, int flags, int mode) override {
    if (preads_ == 0) arm();
    return FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int file, void* to, std::size_t bytes, std::int64_t at) override {
    if (preads_ > 0 && --preads_ == 0) arm();
    return FileCalls::pread(file, to, bytes, at);
  }

 private:
  void arm() {
    if (!failing_) failing_.emplace(n_);
  }
  std::int64_t n_;
  std::int64_t preads_;
  std::optional<::test::FailingAllocation> failing_;
};

/// Has each allocation of work() fail, one after the other; gives how many there were. pread: as
/// above. after(failed): what must hold then.
template <class Work, class After>
std::int64_t fail_each(std::int64_t pread, const Work& work, const After& after) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  for (std::int64_t n = 0;; ++n) {
    bool failed = false;
    bool reached = false;
    {
      const CountingFrom counting(n, pread);
      try {
        work();
      } catch (const std::bad_alloc&) {
        failed = true;
      } catch (const Error&) {
        failed = true;
      }
      reached = counting.reached();
    }
    after(failed);
    if (!reached) return n;
  }
}

const std::vector<std::string>& indices() {
  static const std::vector<std::string> all = {"codes:k=16,v=8", "ivf:size=32,share=32",
                                               "retroinfer:size=16,segment=1024,v=1"};
  return all;
}

TEST(ContextFileMemory, ASaveLeavesWhatWasThere) {
  const auto old = saved_context(file_shape(), 100, {}, {});
  const auto other = saved_context(file_shape(), 300, {}, indices());
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*old, path);
  const std::string before = bytes_of_file(path);
  const std::int64_t allocations = fail_each(
      0, [&] { save_context(*other, path, {.model = "m", .tokens = std::vector<Token>(300, 1)}); },
      [&](bool failed) {
        std::int64_t files = 0;
        for ([[maybe_unused]] const auto& entry :
             std::filesystem::directory_iterator(folder.path()))
          ++files;
        ASSERT_EQ(files, 1);
        if (failed && bytes_of_file(path) == before) return;
        ASSERT_EQ(load_context(path).context->tokens(), 300);
        save_context(*old, path);
      });
  EXPECT_GT(allocations, 20);
}

TEST(ContextFileMemory, ALoadFailsCleanly) {
  const auto context = saved_context(file_shape(), 300, {}, indices());
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*context, path);
  const auto want = test::answers(context, indices()[0], "");
  for (const bool mapped : {false, true}) {
    constexpr std::int64_t behind_the_description = 6;
    const std::int64_t allocations = fail_each(
        behind_the_description, [&] { load_context(path, {.mapped = mapped}); },
        [&](bool /*failed*/) {});
    EXPECT_GT(allocations, 20);
    EXPECT_EQ(test::answers(load_context(path, {.mapped = mapped}).context, indices()[0], ""),
              want);
  }
}

TEST(ContextFileMemory, VerifyHoldsOneHeadOfAnIndexForEachThread) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  const AttentionShape shape = {.layers = 6, .q_heads = 4, .kv_heads = 4, .head_dim = 64};
  const auto context = saved_context(shape, 1500, {}, {"lowrank:r=32", "sparq:r=16,v=1"});
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*context, path);
  const auto peak = [](const auto& work) {
    const ::test::HeapPeak heap;
    work();
    return heap.bytes();
  };
  const std::int64_t of_load = peak([&] { load_context(path, {.mapped = true}); });
  const std::int64_t of_verify = peak([&] { verify_context(path); });
  // Of 24 heads one at a time.
  EXPECT_GT(of_load, context->memory().index_bytes * 9 / 10);
  EXPECT_LT(of_verify, of_load / 4) << of_load;
}

}  // namespace
}  // namespace topkv
