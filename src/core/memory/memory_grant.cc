#include "src/core/memory/memory_grant.h"

#include <condition_variable>
#include <mutex>

#include "topkv/error.h"

namespace topkv {
namespace {

struct Granted {
  std::mutex mutex;
  std::condition_variable given_back;
  std::int64_t bytes = 0;
};

Granted& granted() {
  static Granted all;
  return all;
}

}  // namespace

MemoryGrant::MemoryGrant(const char* what, std::int64_t bytes,
                         const std::function<std::int64_t()>& available)
    : bytes_(bytes) {
  Granted& all = granted();
  std::unique_lock lock(all.mutex);
  for (;;) {
    const std::int64_t free = available();
    if (bytes <= free - all.bytes) break;  // some of what was granted may be taken: then too strict
    if (all.bytes == 0) throw OutOfMemory(what, bytes, free, "free memory");
    all.given_back.wait(lock);
  }
  all.bytes += bytes;
}

MemoryGrant::~MemoryGrant() {
  {
    Granted& all = granted();
    const std::lock_guard lock(all.mutex);
    all.bytes -= bytes_;
  }
  granted().given_back.notify_all();
}

}  // namespace topkv
