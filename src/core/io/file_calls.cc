#include "src/core/io/file_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace topkv {
namespace {

FileCalls of_system;
std::atomic<FileCalls*> in_use{&of_system};

}  // namespace

int FileCalls::open(const char* path, int flags, int mode) { return ::open(path, flags, mode); }
int FileCalls::close(int file) { return ::close(file); }
ssize_t FileCalls::pread(int file, void* to, std::size_t bytes, std::int64_t at) {
  return ::pread(file, to, bytes, at);
}
ssize_t FileCalls::pwrite(int file, const void* from, std::size_t bytes, std::int64_t at) {
  return ::pwrite(file, from, bytes, at);
}
int FileCalls::allocate(int file, std::int64_t bytes) { return ::posix_fallocate(file, 0, bytes); }
int FileCalls::fsync(int file) { return ::fsync(file); }
int FileCalls::lock(int file) { return ::flock(file, LOCK_EX | LOCK_NB); }
int FileCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }

FileCalls& file_calls() { return *in_use.load(std::memory_order_acquire); }
void use_file_calls(FileCalls* calls) {
  in_use.store(calls == nullptr ? &of_system : calls, std::memory_order_release);
}

}  // namespace topkv
