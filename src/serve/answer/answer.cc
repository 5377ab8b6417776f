#include "src/serve/answer/answer.h"

#include <utility>

namespace topkv::serve {

Event together(const std::vector<Event>& events) {
  Event all;
  for (const Event& event : events) {
    all.text += event.text;
    all.logprobs.insert(all.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    all.finish += event.finish;
  }
  return all;
}

void Answer::begin() {
  {
    const std::lock_guard lock(mutex_);
    reading_.begun = true;
    if (!begun_) begun_ = Clock::now();
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
    if (tokens > 0) last_ = Clock::now();
    if (!first_) first_ = last_;
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

AnswerTotals Answer::totals() const {
  const std::lock_guard lock(mutex_);
  const auto seconds = [](const auto& from, const auto& to) {
    return from && to ? std::chrono::duration<double>(*to - *from).count() : 0;
  };
  return {.usage = usage_,
          .times = {.waited = seconds(std::optional(asked_), begun_),
                    .read = seconds(begun_, first_),
                    .generated = seconds(first_, last_)}};
}

ReadingState Answer::reading() const {
  const std::lock_guard lock(mutex_);
  return reading_;
}

}  // namespace topkv::serve
