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
/// total), and while indices are built several times a second. May throw: the exception ends the
/// work, within about a second where an index is built, and reaches the caller. May be empty.
using ProgressFn = std::function<void(const Progress&)>;

}  // namespace topkv
