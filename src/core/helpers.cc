#include "src/core/helpers.h"

#include "src/core/pause.h"

namespace topkv {

Helpers::Helpers(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) tasks_.run([this] { help(); });
}

void Helpers::end() noexcept {
  state_.store(State::over, std::memory_order_release);
  try {
    tasks_.wait();
  } catch (...) {  // another is on its way
  }
}

void Helpers::help() const {
  // The owner may be given one of these while it waits for something else.
  if (std::this_thread::get_id() == owner_) return;
  State state = state_.load(std::memory_order_acquire);
  for (; state == State::waiting; state = state_.load(std::memory_order_acquire)) {
    pause();
  }
  if (state == State::work) call_(work_);
}

}  // namespace topkv
