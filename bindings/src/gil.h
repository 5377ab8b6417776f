// The interpreter's lock, the GIL, in calls of topkv: C++ works without it, and takes it to call
// Python.
//
// An interpreter that ends stops every other thread that asks for the GIL. Before Python 3.14 it
// does so by pthread_exit, which aborts the process in the middle of C++. Threads in these scopes
// therefore stop asking once the interpreter begins to end, which waits for the threads that ask.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <optional>

namespace topkv::python {

/// Releases the GIL for a scope. A thread that leaves the scope after the interpreter began to end
/// waits for the end of the process there.
class GilReleased {
 public:
  GilReleased() : released_(std::in_place) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;  // belongs to one scope
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

/// Holds the GIL for a scope. The thread may hold it already.
class GilHeld {
 public:
  /// Throws Stopped when the interpreter began to end.
  GilHeld();
  ~GilHeld();
  GilHeld(const GilHeld&) = delete;  // belongs to one scope
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  std::optional<pybind11::gil_scoped_acquire> held_;
};

/// Gives something back to Python: calls give_back() with the GIL. After the interpreter began to
/// end it does nothing, because the process frees all memory.
void with_gil_to_the_end(const std::function<void()>& give_back);

/// Makes these scopes know when the interpreter begins to end.
void bind_gil();

}  // namespace topkv::python
