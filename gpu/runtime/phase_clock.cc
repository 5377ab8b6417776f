#include "gpu/runtime/phase_clock.h"

#include <utility>

namespace topkv::gpu {
namespace {

constexpr std::size_t many_marks = 512;  // from which on finished ones are collected

}  // namespace

void CudaPhaseClock::begin(Phase phase) {
  if (marks_.empty() || marks_.back().phase != phase) mark(phase);
}

void CudaPhaseClock::end() {
  if (!marks_.empty() && marks_.back().phase) mark(std::nullopt);
}

PhaseSeconds CudaPhaseClock::seconds() {
  if (!marks_.empty()) marks_.back().event.synchronize();
  collect();
  return seconds_;
}

void CudaPhaseClock::mark(std::optional<Phase> phase) {
  if (marks_.size() >= many_marks) collect();
  if (unused_.empty()) unused_.emplace_back(Event::Timing::on);
  Event event = std::move(unused_.back());
  unused_.pop_back();
  event.record(stream_);
  marks_.push_back({std::move(event), phase});
}

void CudaPhaseClock::collect() {
  while (marks_.size() > 1 && marks_[1].event.done()) {
    Mark& first = marks_.front();
    if (first.phase) {
      seconds_[static_cast<std::size_t>(*first.phase)] +=
          marks_[1].event.seconds_since(first.event);
    }
    unused_.push_back(std::move(first.event));
    marks_.pop_front();
  }
}

}  // namespace topkv::gpu
