// topkv's exceptions as Python's: the same names and texts, each also of the built-in class that
// Python programs expect.
#pragma once

#include <pybind11/pybind11.h>

namespace topkv::python {

void bind_errors(pybind11::module_& module);

}  // namespace topkv::python
