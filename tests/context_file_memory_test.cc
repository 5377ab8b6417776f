// Saving and loading while each allocation in turn fails: nothing is lost, and the next call works.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/context_file_case.h"
#include "tests/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace {

std::atomic<std::int64_t> left{-1};  // allocations until one fails; below 0: none does

}  // namespace

void* operator new(std::size_t bytes) {
  if (left.load() >= 0 && left.fetch_sub(1) == 0) throw std::bad_alloc();
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace topkv {
namespace {

using test::bytes_of_file;
using test::file_shape;
using test::saved_context;

/// Has each allocation of work() fail, one after the other; gives how many there were. after():
/// what must hold when one has failed.
template <class Work, class After>
std::int64_t fail_each(const Work& work, const After& after) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  for (std::int64_t n = 0;; ++n) {
    left = n;
    bool failed = false;
    try {
      work();
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const Error&) {
      failed = true;
    }
    const bool reached = left < 0;
    left = -1;
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
      [&] { save_context(*other, path, {.model = "m", .tokens = std::vector<Token>(300, 1)}); },
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
  EXPECT_GT(allocations, 100);
}

TEST(ContextFileMemory, ALoadFailsCleanly) {
  const auto context = saved_context(file_shape(), 300, {}, indices());
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*context, path);
  const auto want = test::answers(context, indices()[0], "");
  for (const bool mapped : {false, true}) {
    const std::int64_t allocations = fail_each(
        [&] { load_context(path, {.mapped = mapped}); }, [&](bool /*failed*/) {});
    EXPECT_GT(allocations, 100);
    EXPECT_EQ(test::answers(load_context(path, {.mapped = mapped}).context, indices()[0], ""), want);
  }
}

}  // namespace
}  // namespace topkv
