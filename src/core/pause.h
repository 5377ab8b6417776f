// For loops that wait, busily, for another processor.
#pragma once

#include "src/core/stopwatch.h"

namespace topkv {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

inline void pause_for(double seconds) {
  const Stopwatch watch;
  while (watch.seconds() < seconds) pause();
}

}  // namespace topkv
