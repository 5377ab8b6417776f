// Warnings: a condition that does not stop the work but may spoil its result.
#pragma once

#include <functional>
#include <string>

namespace topkv {

/// Receives a warning as one line of text. A warning names a condition that does not stop the work
/// but may spoil its result.
///
/// topkv calls the function from the thread that does the work, and several threads may call it at
/// once. The function may throw; the exception ends that work.
using WarningFn = std::function<void(const std::string& warning)>;

}  // namespace topkv
