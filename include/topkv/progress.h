// How long work reports how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace topkv {

/// One report. stage names the work ("prefill", "index"); done and total count units ("tokens").
struct Progress {
  std::string_view stage;
  std::string_view unit;
  std::int64_t done = 0;
  std::int64_t total = 0;
};

/// Called from the thread that started the work, at least once at the end of each stage (done ==
/// total), and several times a second while indices are built and tokens are read, with the same
/// done again until more is. May throw: the exception ends the work within about a second, and
/// reaches the caller. May be empty: then nothing ends the work.
using ProgressFn = std::function<void(const Progress&)>;

}  // namespace topkv
