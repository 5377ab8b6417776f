// Reports of long work that runs without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <stop_token>

#include "topkv/model.h"
#include "topkv/progress.h"

namespace topkv::python {

/// Returns a handle of an object. The handle may be copied and dropped by threads that do not hold
/// the GIL. REQUIRES: the GIL is held.
std::shared_ptr<pybind11::object> share(const pybind11::object& object);

/// Calls the Python callable, when it is not None, with a Progress. Either way Ctrl-C is noticed
/// at each report: KeyboardInterrupt, like any exception of the callable, ends the work.
ProgressFn progress_of(const pybind11::object& callable);

/// The same for generated tokens; the callable stops the generation by returning False.
TokenFn on_token_of(const pybind11::object& callable);

/// Likewise for pieces of text, and for several sessions, whose number comes first.
TextFn on_text_of(const pybind11::object& callable);
TokenOfFn on_token_of_each(const pybind11::object& callable);
TextOfFn on_text_of_each(const pybind11::object& callable);

/// Runs work without the GIL, to be called with it. Ctrl-C, and what else a signal handler raises,
/// stops the work and is thrown once it has ended.
void run_interruptible(const std::function<void(const std::stop_token&)>& work);

void bind_progress(pybind11::module_& module);

}  // namespace topkv::python
