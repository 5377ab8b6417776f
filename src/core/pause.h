// For loops that wait, busily, for another processor.
#pragma once

namespace topkv {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace topkv
