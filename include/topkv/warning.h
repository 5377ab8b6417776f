// Warnings of the library.
#pragma once

#include <functional>
#include <string>

namespace topkv {

/// Told, in one line, what does not stop the work but may spoil its result. From the thread that
/// does the work, of which there may be several at a time; may throw, which ends it.
using WarningFn = std::function<void(const std::string& warning)>;

}  // namespace topkv
