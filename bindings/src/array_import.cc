// How arrays come in: the buffer protocol and DLPack.
#include <fmt/format.h>

#include "bindings/src/array.h"
#include "bindings/src/dlpack.h"
#include "bindings/src/gil.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

/// What a format of the buffer protocol (Python's struct) means. Byte order: this machine's.
Element element_of_format(const std::string& format, std::int64_t bytes) {
  std::size_t at = 0;
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) at = 1;
  if (format.size() != at + 1) return Element::other;
  switch (format[at]) {
    case 'f':
      return Element::f32;
    case 'e':
      return Element::f16;
    case 'H':
      return Element::bf16;
    case 'i':
    case 'l':
    case 'q':
      return bytes == 8 ? Element::i64 : bytes == 4 ? Element::i32 : Element::other;
    default:
      return Element::other;
  }
}

Element element_of(const dlpack::DataType& type) {
  if (type.lanes != 1) return Element::other;
  switch (type.code) {
    case dlpack::floating:
      return type.bits == 32 ? Element::f32 : type.bits == 16 ? Element::f16 : Element::other;
    case dlpack::bfloat:
    case dlpack::unsigned_integer:
      return type.bits == 16 ? Element::bf16 : Element::other;
    case dlpack::integer:
      return type.bits == 64 ? Element::i64 : type.bits == 32 ? Element::i32 : Element::other;
    default:
      return Element::other;
  }
}

std::string name_of_dlpack(const dlpack::DataType& type) {
  const char* kind = nullptr;
  if (type.code == dlpack::floating) kind = "f";
  if (type.code == dlpack::integer) kind = "i";
  if (type.code == dlpack::unsigned_integer) kind = "u";
  if (type.code == dlpack::bfloat) kind = "bf";
  const std::string name = kind == nullptr
                               ? fmt::format("DLPack type {} of {} bits", type.code, type.bits)
                               : fmt::format("{}{}", kind, type.bits);
  return type.lanes == 1 ? name : fmt::format("{} of {} lanes", name, type.lanes);
}

/// For messages about elements that are none of ours.
std::string name_of_format(const std::string& format, std::int64_t bytes) {
  const char last = format.empty() ? 'B' : format.back();
  if (format.size() > 2) return "elements of format '" + format + "'";
  if (last == 'd' || last == 'g') return fmt::format("f{}", bytes * 8);
  if (std::string("bhilq").find(last) != std::string::npos) return fmt::format("i{}", bytes * 8);
  if (std::string("BHILQ").find(last) != std::string::npos) return fmt::format("u{}", bytes * 8);
  return last == '?' ? "bool" : "elements of format '" + format + "'";
}

std::string name_of_element(Element element, const std::string& other) {
  switch (element) {
    case Element::f32:
      return "f32";
    case Element::f16:
      return "f16";
    case Element::bf16:
      return "bf16";
    case Element::i32:
      return "i32";
    case Element::i64:
      return "i64";
    default:
      return other;
  }
}

/// What a Python exception says, on one line.
std::string text_of(const py::error_already_set& error) {
  std::string text = py::str(error.value());
  return text.substr(0, text.find('\n'));
}

template <class Managed>
std::shared_ptr<void> own(Managed* managed) {
  return {managed, [](void* pointer) {
            auto* tensor = static_cast<Managed*>(pointer);
            if (tensor->deleter == nullptr) return;
            with_gil_to_the_end([&] { tensor->deleter(tensor); });
          }};
}

}  // namespace

Array::Array(py::handle object, const char* name) : name_(name) {
  // The buffer protocol first: it gives NumPy's read-only arrays, which old __dlpack__ refuses.
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    take_buffer(object);
  } else if (py::hasattr(object, "__dlpack__")) {
    take_dlpack(object);
  } else {
    throw InvalidArgument(
        fmt::format("{} is a {}; expected an array: a NumPy array, a PyTorch tensor or whatever "
                    "has the buffer protocol or __dlpack__",
                    name_, Py_TYPE(object.ptr())->tp_name));
  }
}

void Array::take_buffer(py::handle object) {
  auto* buffer = new Py_buffer();
  if (PyObject_GetBuffer(object.ptr(), buffer, PyBUF_RECORDS_RO) != 0) {
    delete buffer;
    const py::error_already_set error;
    throw InvalidArgument(
        fmt::format("{}: its memory cannot be viewed: {}", name_, text_of(error)));
  }
  owner_ = {buffer, [](void* pointer) {
              auto* view = static_cast<Py_buffer*>(pointer);
              with_gil_to_the_end([&] { PyBuffer_Release(view); });
              delete view;
            }};
  data_ = buffer->buf;
  element_name_ = buffer->format == nullptr ? "B" : buffer->format;
  element_ = element_of_format(element_name_, buffer->itemsize);
  element_name_ = name_of_element(element_, name_of_format(element_name_, buffer->itemsize));
  writable_ = buffer->readonly == 0;
  for (int axis = 0; axis < buffer->ndim; ++axis) {
    shape_.push_back(buffer->shape[axis]);
    strides_.push_back(buffer->strides[axis] / buffer->itemsize);
    if (buffer->strides[axis] % buffer->itemsize != 0) refuse("strides of whole elements");
  }
}

void Array::take_dlpack(py::handle object) {
  py::object capsule;
  try {
    const auto device = py::cast<py::tuple>(object.attr("__dlpack_device__")());
    const auto type = py::cast<std::int32_t>(device[0]);
    if (type == dlpack::cuda || type == dlpack::cuda_managed) {
      device_ = py::cast<int>(device[1]);
    } else if (type != dlpack::cpu && type != dlpack::cuda_host) {
      throw InvalidArgument(fmt::format(
          "{} is on a device of DLPack type {}; expected the host or a CUDA device", name_, type));
    }
    py::dict arguments;
    if (device_ != host) arguments["stream"] = -1;  // the caller names the stream
    const auto version = py::make_tuple(1, 0);
    try {
      capsule = object.attr("__dlpack__")(**arguments, py::arg("max_version") = version);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = object.attr("__dlpack__")(**arguments);  // a producer of version 0.x
    }
  } catch (const py::error_already_set& error) {
    const std::string text = text_of(error);
    const bool has_gradient = py::hasattr(object, "requires_grad") &&
                              py::cast<bool>(py::bool_(object.attr("requires_grad")));
    throw InvalidArgument(fmt::format(
        "{}: {}", name_, has_gradient ? "the tensor requires grad; pass x.detach()" : text));
  }

  const dlpack::Tensor* tensor = nullptr;
  PyObject* const raw = capsule.ptr();
  if (PyCapsule_IsValid(raw, "dltensor_versioned") != 0) {
    auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(raw, "dltensor_versioned"));
    if (managed->major_version != 1) {
      throw InvalidArgument(fmt::format("{} comes as DLPack version {}; expected 0 or 1", name_,
                                        managed->major_version));
    }
    PyCapsule_SetName(raw, "used_dltensor_versioned");
    owner_ = own(managed);
    tensor = &managed->tensor;
    writable_ = (managed->flags & dlpack::read_only_flag) == 0;
  } else if (PyCapsule_IsValid(raw, "dltensor") != 0) {
    auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(raw, "dltensor"));
    PyCapsule_SetName(raw, "used_dltensor");
    owner_ = own(managed);
    tensor = &managed->tensor;
    writable_ = true;
  } else {
    throw InvalidArgument(fmt::format("{}: __dlpack__ gave no DLPack capsule", name_));
  }

  data_ = static_cast<char*>(tensor->data) + tensor->byte_offset;
  element_ = element_of(tensor->dtype);
  element_name_ = name_of_element(element_, name_of_dlpack(tensor->dtype));
  shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  take_strides(tensor->strides);
}

void Array::take_strides(const std::int64_t* strides) {
  if (strides != nullptr) {
    strides_.assign(strides, strides + rank());
    return;
  }
  strides_.resize(shape_.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    strides_[axis] = stride;
    stride *= shape_[axis];
  }
}

}  // namespace topkv::python
