// Calls of CUDA, cuBLAS and cuDNN, as the library makes them, that can be made to fail, and a count
// of what they make and do not give back. Link failing_calls.cc with the linker's option --wrap for
// each of them (CMakeLists.txt).
#pragma once

#include <cstdint>

namespace test {

enum class Calls : std::uint8_t {
  making,  ///< of memory, page-locks, streams, events, handles, graphs: "out of memory"
  any,     ///< these, copies, launches, products, records and recordings: "launch failure"
  waits,   ///< alone, and questions whether work is done: they end, then give "launch failure"
  cudnn,   ///< cuDNN's alone, of a handle and of attention
  lost,    ///< all of these, and from the first that fails on each: the device is lost
};

/// While one lives, the n-th of these calls (from 0) from now on does nothing, or has waited, and
/// gives an error; below 0: none. What gives something back does so always. Of any thread. One at a
/// time.
class FailingCall {
 public:
  FailingCall(Calls calls, std::int64_t n);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;  // belongs to one scope
  FailingCall& operator=(const FailingCall&) = delete;
  /// Those to come before it; below 0 once it has failed.
  static std::int64_t left();
  /// The one that failed last.
  static const char* name();
};

/// What was made and has not been given back.
std::int64_t device_things();

}  // namespace test
