// Reports of long work that runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "topkv/model.h"
#include "topkv/progress.h"

namespace topkv::python {

/// Calls the Python callable, when it is not None, with a Progress. Either way Ctrl-C is noticed
/// at each report: KeyboardInterrupt, like any exception of the callable, ends the work.
ProgressFn progress_of(const pybind11::object& callable);

/// The same for generated tokens; the callable stops the generation by returning False.
TokenFn on_token_of(const pybind11::object& callable);

void bind_progress(pybind11::module_& module);

}  // namespace topkv::python
