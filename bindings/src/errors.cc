#include "bindings/src/errors.h"

#include <string_view>

#include "topkv/error.h"

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

void raise(const py::object& type, const Error& error) {
  PyErr_SetObject(type.ptr(), text_of(error).ptr());
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

}  // namespace

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
