// Saving and loading while the operating system's calls fail, or the process ends between two.
#include <errno.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "src/core/io/file_calls.h"
#include "tests/support/context_file_case.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::bytes_of_file;
using test::file_shape;
using test::saved_context;

/// The n-th call fails, in a way; n: from 0.
class Failing : public FileCalls {
 public:
  enum class How { error, short_write, kill };
  Failing(std::int64_t n, How how, int error) : left_(n), how_(how), error_(error) {
    use_file_calls(this);
  }
  ~Failing() override { use_file_calls(nullptr); }
  bool reached() const { return left_ < 0; }

  int open(const char* path, int flags, int mode) override {
    return fails() ? -1 : FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int file, void* to, std::size_t bytes, std::int64_t at) override {
    return fails() ? -1 : FileCalls::pread(file, to, bytes, at);
  }
  ssize_t pwrite(int file, const void* from, std::size_t bytes, std::int64_t at) override {
    if (!fails()) return FileCalls::pwrite(file, from, bytes, at);
    if (how_ != How::short_write) return -1;
    return FileCalls::pwrite(file, from, std::max<std::size_t>(bytes / 2, 1), at);
  }
  int allocate(int file, std::int64_t bytes) override {
    return fails() ? error_ : FileCalls::allocate(file, bytes);
  }
  int fsync(int file) override { return fails() ? -1 : FileCalls::fsync(file); }
  int lock(int file) override { return fails() ? -1 : FileCalls::lock(file); }
  int rename(const char* from, const char* to) override {
    return fails() ? -1 : FileCalls::rename(from, to);
  }

 private:
  bool fails() {
    if (left_-- != 0) return false;
    if (how_ == How::kill) ::kill(::getpid(), SIGKILL);
    errno = error_;
    return true;
  }

  std::atomic<std::int64_t> left_;
  How how_;
  int error_;
};

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST(ContextFileFaults, ASaveThatFailsLeavesWhatWasThere) {
  const auto old = saved_context(file_shape(), 100, {}, {});
  const auto other = saved_context(file_shape(), 200, {}, {"codes:k=16,v=8"});
  for (const int error : {EIO, ENOSPC, EINTR}) {
    const TempDirectory folder;
    const auto path = folder.path() / "c.tkv";
    save_context(*old, path);
    const std::string before = bytes_of_file(path);
    int failures = 0;
    for (std::int64_t n = 0;; ++n) {
      const Failing failing(n, Failing::How::error, error);
      bool failed = false;
      try {
        save_context(*other, path);
      } catch (const FileError& thrown) {
        failed = true;
        ++failures;
        EXPECT_TRUE(std::string(thrown.what()).starts_with(path.string())) << thrown.what();
      }
      const bool reached = failing.reached();
      use_file_calls(nullptr);
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"c.tkv"}) << n;
      if (failed && load_context(path).context->tokens() == 100) {
        EXPECT_EQ(bytes_of_file(path), before) << n;
      } else {  // whole; where it failed all the same, the folder could not be synced
        EXPECT_EQ(load_context(path).context->tokens(), 200) << n;
        save_context(*old, path);
      }
      if (!reached) break;
    }
    // Those of reading and writing alone go on after EINTR.
    EXPECT_GT(failures, error == EINTR ? 2 : 20) << error;
  }
}

TEST(ContextFileFaults, AShortWriteGoesOn) {
  const auto context = saved_context(file_shape(), 200, {}, {"codes:k=16,v=8"});
  const TempDirectory folder;
  save_context(*context, folder.path() / "whole.tkv");
  const std::string whole = bytes_of_file(folder.path() / "whole.tkv");
  for (std::int64_t n = 0;; ++n) {
    const Failing failing(n, Failing::How::short_write, EIO);
    try {
      save_context(*context, folder.path() / "c.tkv");
      EXPECT_EQ(bytes_of_file(folder.path() / "c.tkv"), whole) << n;
    } catch (const FileError&) {  // a call that is no write
    }
    if (!failing.reached()) break;
  }
}

TEST(ContextFileFaults, ALoadThatFailsSaysSo) {
  const auto context = saved_context(file_shape(), 200, {}, {"codes:k=16,v=8"});
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*context, path);
  int failures = 0;
  for (const bool mapped : {false, true}) {
    for (std::int64_t n = 0;; ++n) {
      const Failing failing(n, Failing::How::error, EIO);
      try {
        load_context(path, {.mapped = mapped});
        EXPECT_FALSE(failing.reached()) << n;
      } catch (const FileError& thrown) {
        ++failures;
        EXPECT_TRUE(std::string(thrown.what()).starts_with(path.string())) << thrown.what();
      }
      if (!failing.reached()) break;
    }
  }
  EXPECT_GT(failures, 30);
}

TEST(ContextFileFaults, AProcessThatEndsAnywhereLeavesAWholeFile) {
  // One thread: a child has no others.
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  const auto old = saved_context(file_shape(), 100, {}, {});
  const auto other = saved_context(file_shape(), 200, {}, {"codes:k=16,v=8"});
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  int killed = 0;
  bool left_rubbish = false;
  for (std::int64_t n = 0;; ++n) {
    save_context(*old, path);
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"c.tkv"}) << n;  // the next save's
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Failing failing(n, Failing::How::kill, 0);
      save_context(*other, path);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    left_rubbish = left_rubbish || names_in(folder.path()).size() > 1;
    verify_context(path);
    const std::int64_t tokens = load_context(path).context->tokens();
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_EQ(tokens, 200);
      break;
    }
    ++killed;
    EXPECT_TRUE(tokens == 100 || tokens == 200) << n;
  }
  EXPECT_GT(killed, 20);
  EXPECT_TRUE(left_rubbish);
}

}  // namespace
}  // namespace topkv
