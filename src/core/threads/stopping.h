// How long loops learn that the work they are part of shall stop.
//
// Who watches the work (run_watched) gives the thread that does it a stop token; parallel_for hands
// that on to its bodies, on whatever threads they run. A loop that may take long asks a StopCheck
// on its way. Work that nobody watches has no token, and is never stopped.
#pragma once

#include <stop_token>
#include <utility>

#include "src/core/io/faults.h"
#include "topkv/error.h"

namespace topkv {

/// The token of what this thread is doing; null: none.
inline thread_local const std::stop_token* current_stop = nullptr;

/// While one lives, what the calling thread does can be stopped by this token, which outlives it;
/// null: by none.
class StopScope {
 public:
  explicit StopScope(const std::stop_token* stop) : before_(std::exchange(current_stop, stop)) {}
  ~StopScope() { current_stop = before_; }
  StopScope(const StopScope&) = delete;  // belongs to one scope
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::stop_token* before_;
};

/// Throws Stopped when the work that the calling thread is part of shall stop: a load of an atomic,
/// to be called several times a second.
inline void check_stop() {
  if (current_stop == nullptr) return;
  reach_fault("stop");
  if (current_stop->stop_requested()) throw Stopped("stopped");
}

}  // namespace topkv
