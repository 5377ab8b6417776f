// Places where a test can make a call fail, to show that it then leaves everything as it was.
// Nothing but tests sets the hook; without one, passing such a place costs the reading of a
// pointer.
#pragma once

#include <atomic>

namespace topkv {

/// Called with the name of the place; may throw. Called from any thread.
inline std::atomic<void (*)(const char* place)> fault_hook{nullptr};

inline void reach_fault(const char* place) {
  if (const auto hook = fault_hook.load(std::memory_order_relaxed)) hook(place);
}

}  // namespace topkv
