#include "src/serve/answer/answer.h"

#include <utility>

namespace topkv::serve {

void Answer::begin() {
  {
    const std::lock_guard lock(mutex_);
    reading_.begun = true;
  }
  arrived_.notify_one();
}

void Answer::reuse(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  usage_.kept += tokens;
}

void Answer::read(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  reading_.read += tokens;
}

void Answer::put(Event event, std::int64_t tokens) {
  {
    const std::lock_guard lock(mutex_);
    usage_.generated += tokens;
    if (!event.finish.empty() && running_ > 0) --running_;
    if (event.text.empty() && event.logprobs.empty() && event.finish.empty()) return;
    events_.push_back(std::move(event));
  }
  arrived_.notify_one();
}

void Answer::fail(Problem problem) {
  {
    const std::lock_guard lock(mutex_);
    if (!problem_) problem_ = std::move(problem);
  }
  cancelled_ = true;  // of the request's other answers
  arrived_.notify_one();
}

std::optional<Event> Answer::next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, wait, [&] { return !events_.empty() || problem_; });
  if (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  if (problem_) throw *problem_;
  return {};
}

void Answer::wait_for_begin(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, wait, [&] { return reading_.begun || !events_.empty() || problem_; });
}

bool Answer::finished() const {
  const std::lock_guard lock(mutex_);
  return running_ == 0 && events_.empty();
}

Usage Answer::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

ReadingState Answer::reading() const {
  const std::lock_guard lock(mutex_);
  return reading_;
}

}  // namespace topkv::serve
