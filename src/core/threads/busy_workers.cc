#include "src/core/threads/busy_workers.h"

#include <algorithm>

#include "src/core/threads/cpu_relax.h"
#include "src/core/threads/threads.h"

namespace topkv {

Helpers::~Helpers() noexcept {
  release();
  // They are on their way.
  coming_.tasks.wait();
  watched_.tasks.wait();
}

void Helpers::wake(std::int64_t count) {
  turn_ += next_turn;
  state_ = turn_ + waiting;
  awake_ = true;
  const auto owner = std::this_thread::get_id();
  // Those that did not come in time for an earlier turn are still to come.
  Coming& coming = current_stop != nullptr ? watched_ : coming_;
  const std::int64_t most = std::min(count, thread_count() - 1);  // nobody would take up more
  for (std::int64_t n = coming.count; n < most; ++n) {
    ++coming.count;
    try {
      coming.tasks.run([this, &coming, owner] {
        --coming.count;
        // The owner may be given one of these while it waits for something else.
        if (std::this_thread::get_id() != owner) help();
      });
    } catch (...) {  // there is no memory for it
      --coming.count;
      release();
      throw;
    }
  }
}

void Helpers::release() noexcept {
  state_ = turn_ + over;
  awake_ = false;
  // Who is counted after this sees the state as it is now.
  while (busy_ != 0) pause();
  if (current_stop != nullptr) watched_.tasks.wait();
}

void Helpers::help() {
  std::uint64_t turn = state_;
  turn -= turn % next_turn;
  while (state_ == turn + waiting) pause();
  ++busy_;
  if (state_ == turn + working) {
    try {
      call_(work_);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  --busy_;
}

}  // namespace topkv
