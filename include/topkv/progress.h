// Progress: reports of how far long work is, through a function that the caller gives. The function
// can also end the work: it throws.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace topkv {

/// One report of long work: its stage, how much is done and how much there is in all.
///
/// - stage: the name of the work, such as "prefill" or "index".
/// - unit: the unit of done and total, such as "tokens".
struct Progress {
  std::string_view stage;
  std::string_view unit;
  std::int64_t done = 0;
  std::int64_t total = 0;
};

/// Receives reports of long work. An empty function receives nothing, and nothing then ends the
/// work.
///
/// The function is called on the thread that started the work. A call comes at the end of each
/// stage, with done equal to total. While indices are built and tokens are read, calls come several
/// times a second, and repeat `done` until more is done.
///
/// The function may throw. The exception ends the work within about a second and reaches the
/// caller.
using ProgressFn = std::function<void(const Progress&)>;

}  // namespace topkv
