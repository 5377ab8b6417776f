// For loops that wait, busily, for another processor.
#pragma once

#include <cstdint>
#include <thread>

namespace topkv {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until come(). Calls meanwhile() between looks and, once in many, check(), which may throw:
/// what is waited for may never come.
template <class Come, class Meanwhile, class Check>
void wait_busily(const Come& come, const Meanwhile& meanwhile, const Check& check) {
  constexpr std::uint64_t looks_of_a_check = 1024;
  for (std::uint64_t looks = 1; !come(); ++looks) {
    meanwhile();
    if (looks > looks_of_a_check) std::this_thread::yield();  // others' work is before this
    if (looks % looks_of_a_check == 0) check();
  }
}

}  // namespace topkv
