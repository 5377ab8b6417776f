// Host memory that is about to be taken. What is free says nothing of what other threads were told
// is theirs and have not touched yet: whoever takes much holds a grant while it does.
#pragma once

#include <cstdint>
#include <functional>

#include "src/core/memory/memory.h"

namespace topkv {

/// Held until the memory is committed. Any thread.
class MemoryGrant {
 public:
  /// Where there is not enough besides what others were granted, waits for these: they have then
  /// taken it, or not. REQUIRES: who holds one waits for nobody who asks for one.
  /// what: in the error's message. available: bytes that are free now; one thread at a time calls
  /// it. Throws OutOfMemory.
  MemoryGrant(
      const char* what, std::int64_t bytes,
      const std::function<std::int64_t()>& available = [] { return available_host_memory(); });
  ~MemoryGrant();
  MemoryGrant(const MemoryGrant&) = delete;  // given back once
  MemoryGrant& operator=(const MemoryGrant&) = delete;

 private:
  std::int64_t bytes_;
};

}  // namespace topkv
