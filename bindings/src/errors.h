// topkv's exceptions as Python's: the same names and texts, each also of the built-in class that
// Python programs expect.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "topkv/error.h"

namespace topkv::python {

/// An exception that an application's Python code raised while C++ called it. It may be copied, and
/// may be destroyed by threads that do not hold the GIL.
class RaisedInPython {
 public:
  explicit RaisedInPython(pybind11::error_already_set raised) : raised_(std::move(raised)) {}
  const pybind11::error_already_set& raised() const { return raised_; }

 private:
  pybind11::error_already_set raised_;
};

/// Carries an exception of Python through C++. A topkv::Error that holds it directly, as
/// std::nested_exception, becomes that exception again when it reaches Python. It is the __cause__
/// of all other errors that lead to it.
class PythonError : public Error, public RaisedInPython {
 public:
  /// REQUIRES: the GIL is held.
  explicit PythonError(const pybind11::error_already_set& raised);
};

/// Carries a ValueError about parameters or saved bytes, which is an InvalidArgument to C++.
class PythonInvalidArgument : public InvalidArgument, public RaisedInPython {
 public:
  /// REQUIRES: the GIL is held.
  explicit PythonInvalidArgument(const pybind11::error_already_set& raised);
};

void bind_errors(pybind11::module_& module);

}  // namespace topkv::python
