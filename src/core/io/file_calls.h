// The operating system's calls on files that hold what cannot be made again. They go through one
// object, so that a test may have any of them fail, or end the process between two.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace topkv {

/// Each does what the call of its name does and gives what that gives, errno and all. Safe from
/// many threads.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, int mode);
  virtual int close(int file);
  virtual ssize_t pread(int file, void* to, std::size_t bytes, std::int64_t at);
  virtual ssize_t pwrite(int file, const void* from, std::size_t bytes, std::int64_t at);
  /// posix_fallocate: gives the error, 0 for none.
  virtual int allocate(int file, std::int64_t bytes);
  virtual int fsync(int file);
  /// flock, without waiting.
  virtual int lock(int file);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
};

FileCalls& file_calls();
/// For tests; null: the system's again. What was given is used until then.
void use_file_calls(FileCalls* calls);

}  // namespace topkv
