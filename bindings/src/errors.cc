#include "bindings/src/errors.h"

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace topkv::python {
namespace {

namespace py = pybind11;

struct Classes {
  py::object error, invalid_argument, file_error, unsupported, out_of_memory;
};

/// Lives as long as the interpreter: a translator may run late.
Classes& classes() {
  static auto* const made = new Classes();
  return *made;
}

py::object make(py::module_& module, const char* name, const char* doc, const py::tuple& bases) {
  const std::string full = std::string("topkv.") + name;
  auto made = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr));
  if (!made) throw py::error_already_set();
  module.attr(name) = made;
  return made;
}

/// Texts quote what they were given, which may be no UTF-8.
py::object text_of(const Error& error) {
  const std::string_view what = error.what();
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "backslashreplace"));
}

struct Cause {
  py::error_already_set raised;
  bool is_direct;  ///< the error only says where it was raised
};

/// Returns the exception of Python that led to an error.
std::optional<Cause> cause_of(const std::exception& error, bool is_direct = true) {
  try {
    std::rethrow_if_nested(error);
  } catch (const RaisedInPython& cause) {
    return Cause{cause.raised(), is_direct};
  } catch (const std::exception& cause) {
    return cause_of(cause, false);
  } catch (...) {  // the error has its text
  }
  return {};
}

void raise(const py::object& type, const Error& error) {
  auto cause = cause_of(error);
  if (!cause) return PyErr_SetObject(type.ptr(), text_of(error).ptr());
  const py::object raised = cause->raised.value();
  if (!cause->is_direct) {
    const py::object value = type(text_of(error));
    PyException_SetCause(value.ptr(), py::object(raised).release().ptr());
    return PyErr_SetObject(type.ptr(), value.ptr());
  }
  // Python 3.10 has no notes.
  if (py::hasattr(raised, "add_note")) raised.attr("add_note")(text_of(error));
  cause->raised.restore();
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const OutOfMemory& error) {
    const py::object value = classes().out_of_memory(text_of(error));
    value.attr("wanted_bytes") = error.wanted_bytes();
    value.attr("available_bytes") = error.available_bytes();
    PyErr_SetObject(classes().out_of_memory.ptr(), value.ptr());
  } catch (const InvalidArgument& error) {
    raise(classes().invalid_argument, error);
  } catch (const FileError& error) {
    raise(classes().file_error, error);
  } catch (const Unsupported& error) {
    raise(classes().unsupported, error);
  } catch (const Error& error) {
    raise(classes().error, error);
  }
}

/// Returns a text such as "ValueError: too few keys".
std::string summary(const py::error_already_set& raised) {
  const auto type = py::cast<std::string>(raised.type().attr("__name__"));
  return type + ": " + py::cast<std::string>(py::str(raised.value()));
}

}  // namespace

PythonError::PythonError(const py::error_already_set& raised)
    : Error(summary(raised)), RaisedInPython(raised) {}

PythonInvalidArgument::PythonInvalidArgument(const py::error_already_set& raised)
    : InvalidArgument(summary(raised)), RaisedInPython(raised) {}

void bind_errors(py::module_& module) {
  const auto base = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  Classes& all = classes();
  all.error = make(module, "Error", "Base of all exceptions that topkv raises on purpose.",
                   py::make_tuple(base(PyExc_Exception)));
  all.invalid_argument = make(module, "InvalidArgument",
                              "An argument, option, array or spec that cannot be used as given.",
                              py::make_tuple(all.error, base(PyExc_ValueError)));
  all.file_error = make(module, "FileError",
                        "A file cannot be read, or its contents are invalid. The text begins with "
                        "the path.",
                        py::make_tuple(all.error, base(PyExc_OSError)));
  all.unsupported =
      make(module, "Unsupported", "A well-formed request or model that topkv does not implement.",
           py::make_tuple(all.error, base(PyExc_NotImplementedError)));
  all.out_of_memory =
      make(module, "OutOfMemory",
           "Not enough memory; refused before work started. See wanted_bytes and available_bytes.",
           py::make_tuple(all.error, base(PyExc_MemoryError)));
  all.out_of_memory.attr("wanted_bytes") = 0;
  all.out_of_memory.attr("available_bytes") = 0;
  py::register_local_exception_translator(translate);
}

}  // namespace topkv::python
