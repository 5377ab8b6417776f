#include "bindings/src/progress.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "bindings/src/gil.h"
#include "src/core/threads/run_with_progress.h"

namespace topkv::python {
namespace {

namespace py = pybind11;

/// A Progress that may be kept: the texts of a C++ one live only as long as the call.
struct Report {
  std::string stage;
  std::string unit;
  std::int64_t done;
  std::int64_t total;
};

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// Calls it, unless it is None. False where it returns False.
template <class... Arguments>
bool goes_on(const py::object& callable, const Arguments&... arguments) {
  const GilHeld gil;
  check_signals();
  return callable.is_none() || !callable(arguments...).is(py::bool_(false));
}

}  // namespace

std::shared_ptr<py::object> share(const py::object& object) {
  return {new py::object(object),
          [](py::object* held) { with_gil_to_the_end([&] { delete held; }); }};
}

ProgressFn progress_of(const py::object& callable) {
  return [callable = share(callable)](const Progress& progress) {
    const GilHeld gil;
    check_signals();
    if (callable->is_none()) return;
    (*callable)(Report{std::string(progress.stage), std::string(progress.unit), progress.done,
                       progress.total});
  };
}

TokenFn on_token_of(const py::object& callable) {
  return [callable = share(callable)](Token token) { return goes_on(*callable, token); };
}

TokenOfFn on_token_of_each(const py::object& callable) {
  return [callable = share(callable)](std::size_t session, Token token) {
    return goes_on(*callable, session, token);
  };
}

TextFn on_text_of(const py::object& callable) {
  if (callable.is_none()) return {};  // no text is made
  return [callable = share(callable)](std::string_view text) { return goes_on(*callable, text); };
}

TextOfFn on_text_of_each(const py::object& callable) {
  if (callable.is_none()) return {};
  return [callable = share(callable)](std::size_t session, std::string_view text) {
    return goes_on(*callable, session, text);
  };
}

void run_interruptible(const std::function<void(const std::stop_token&)>& work) {
  const GilReleased released;
  run_watched(work, [] {
    const GilHeld gil;
    check_signals();
  });
}

void bind_progress(py::module_& module) {
  py::class_<Report>(module, "Progress",
                     "One report of long work: `done` of `total`, counted in `unit`; `stage` names "
                     "the work.")
      .def_readonly("stage", &Report::stage)
      .def_readonly("unit", &Report::unit)
      .def_readonly("done", &Report::done)
      .def_readonly("total", &Report::total)
      .def("__repr__", [](const Report& r) {
        return fmt::format("Progress({}: {} of {} {})", r.stage, r.done, r.total, r.unit);
      });
}

}  // namespace topkv::python
