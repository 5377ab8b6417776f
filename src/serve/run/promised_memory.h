// Host memory that is free now but promised: rows of sessions and of contexts being read are
// committed as they come. Sessions that are kept for later give way to them.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/core/memory/memory.h"
#include "src/serve/run/kept_sessions.h"

namespace topkv::serve {

/// Safe from many threads, as atomics are: two who ask at once may both be told the same.
struct PromisedMemory {
  /// kept_bytes: host memory that kept sessions may take; 0: none is kept.
  explicit PromisedMemory(std::int64_t kept_bytes = 0) : kept(kept_bytes) {}

  std::atomic<std::int64_t> sessions = 0;
  std::atomic<std::int64_t> contexts = 0;
  KeptSessions kept;

  /// What can be promised still.
  std::int64_t left() const { return available_host_memory() - sessions - contexts; }

  /// Whether `wanted` bytes could be promised after all kept sessions were given up.
  bool can_make_room(std::int64_t wanted) const { return left() + kept.bytes() >= wanted; }

  /// Returns the bytes that can be promised. Gives up kept sessions, the oldest first, until these
  /// are `wanted` bytes or no session is kept. Gives up none when all of them would not be enough.
  std::int64_t make_room(std::int64_t wanted) {
    std::int64_t now = left();
    if (now + kept.bytes() < wanted) return now;
    while (now < wanted && kept.give_up_oldest()) now = left();
    return now;
  }
};

}  // namespace topkv::serve
