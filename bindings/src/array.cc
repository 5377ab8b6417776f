#include "bindings/src/array.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>

#include "topkv/error.h"

namespace topkv::python {
namespace {

std::string name_of_device(int device) {
  return device == host ? "on the host" : fmt::format("on cuda:{}", device);
}

std::string expected_shape(const std::vector<Array::Extent>& shape) {
  std::string text;
  for (const Array::Extent& extent : shape) {
    if (!text.empty()) text += ", ";
    text += extent.size == Array::any_size ? std::string(extent.name)
                                           : fmt::format("{} {}", extent.name, extent.size);
  }
  return "[" + text + "]";
}

}  // namespace

bool Array::contiguous() const {
  std::int64_t stride = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    if (shape_[axis] == 0) return true;
    if (shape_[axis] != 1 && strides_[axis] != stride) return false;
    stride *= shape_[axis];
  }
  return true;
}

bool Array::has_shape(const std::vector<Extent>& shape) const {
  if (shape.size() != shape_.size()) return false;
  std::size_t axis = 0;
  for (const Extent& extent : shape) {
    if (extent.size != any_size && extent.size != shape_[axis]) return false;
    ++axis;
  }
  return true;
}

bool Array::are_floats(int device) const {
  return element_ == Element::f32 && device_ == device && contiguous() &&
         reinterpret_cast<std::uintptr_t>(data_) % alignof(float) == 0;
}

float* Array::writable() const {
  if (writable_) return static_cast<float*>(data_);
  throw InvalidArgument(fmt::format("{} is read-only; expected an array to write to", name_));
}

const float* Array::floats(const std::vector<Extent>& shape, int device) const {
  if (!are_floats(device) || !has_shape(shape)) {
    refuse(fmt::format("f32 {}, contiguous, {}{}", expected_shape(shape), name_of_device(device),
                       remedy(device)));
  }
  return static_cast<const float*>(data_);
}

float* Array::floats_out(const std::vector<Extent>& shape, int device) const {
  floats(shape, device);
  return writable();
}

const float* Array::floats() const {
  if (!are_floats(host)) refuse(fmt::format("f32, contiguous, on the host{}", remedy(host)));
  return static_cast<const float*>(data_);
}

float* Array::floats_out() const {
  floats();
  return writable();
}

std::string Array::remedy(int device) const {
  if (device_ != device) return "; move it there";
  if (element_ != Element::f32)
    return "; convert it (x.float() in PyTorch, x.astype('float32') in NumPy)";
  if (!contiguous()) return "; make it so (x.contiguous() in PyTorch, numpy.ascontiguousarray)";
  if (reinterpret_cast<std::uintptr_t>(data_) % alignof(float) != 0) {
    return "; its memory is not aligned to elements: copy it";
  }
  return "";
}

DType Array::row_dtype(const std::string& layout) const {
  if (device_ == host) {
    if (element_ == Element::f32) return DType::f32;
    if (element_ == Element::f16) return DType::f16;
    if (element_ == Element::bf16) return DType::bf16;
  }
  refuse(fmt::format("f32, f16 or bf16 {} on the host{}", layout,
                     device_ == host ? "" : "; move it there"));
}

TensorView Array::tensor(std::int64_t heads, std::int64_t head_dim) const {
  const std::string layout = fmt::format("[tokens, heads {}, head_dim {}]", heads, head_dim);
  const DType dtype = row_dtype(layout);
  const bool shaped = has_shape({{"", any_size}, {"", heads}, {"", head_dim}});
  if (!shaped || (strides_[2] != 1 && head_dim > 1)) {
    refuse(layout + ", the elements of a head next to each other");
  }
  return {data_, dtype, shape_[0], heads, head_dim, strides_[0], strides_[1]};
}

KeyView Array::keys() const {
  const DType dtype = row_dtype("[n, dim]");
  const bool adjacent = rank() == 2 && (strides_[1] == 1 || shape_[1] <= 1);
  if (!adjacent || (shape_[0] > 1 && strides_[0] < shape_[1])) {
    refuse("[n, dim], the elements of a row next to each other and rows in rising order");
  }
  const std::int64_t stride = std::max(strides_[0], shape_[1]);
  return {static_cast<const std::byte*>(data_), dtype, shape_[0], shape_[1],
          stride * bytes_of(dtype)};
}

const std::int64_t* Array::integers(std::int64_t columns) const {
  const bool shaped = columns == 0 ? rank() == 1 : rank() == 2 && shape_[1] == columns;
  if (element_ != Element::i64 || !shaped || !contiguous() || device_ != host) {
    refuse(fmt::format("i64 {}, contiguous, on the host",
                       columns == 0 ? "[n]" : fmt::format("[n, {}]", columns)));
  }
  return static_cast<const std::int64_t*>(data_);
}

std::vector<std::int64_t> Array::integer_values() const {
  if ((element_ != Element::i64 && element_ != Element::i32) || rank() != 1 || device_ != host) {
    refuse("i32 or i64 [n] on the host");
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape_[0]));
  for (std::int64_t i = 0; i < shape_[0]; ++i) {
    const std::int64_t at = i * strides_[0];
    values[static_cast<std::size_t>(i)] = element_ == Element::i64
                                              ? static_cast<const std::int64_t*>(data_)[at]
                                              : static_cast<const std::int32_t*>(data_)[at];
  }
  return values;
}

std::string Array::describe() const {
  return fmt::format(
      "{} [{}]{} {}", element_name_, fmt::join(shape_, ", "),
      contiguous() ? "" : fmt::format(" with strides [{}]", fmt::join(strides_, ", ")),
      name_of_device(device_));
}

void Array::refuse(const std::string& expected) const {
  throw InvalidArgument(fmt::format("{} is {}; expected {}", name_, describe(), expected));
}

std::vector<std::int64_t> integers_of(py::handle object, const char* name) {
  if (PyObject_CheckBuffer(object.ptr()) == 0 && !py::hasattr(object, "__dlpack__")) {
    try {
      return py::cast<std::vector<std::int64_t>>(object);
    } catch (const py::cast_error&) {
      throw InvalidArgument(
          fmt::format("{} is a {}; expected a sequence of ints or an array of i32 or i64", name,
                      Py_TYPE(object.ptr())->tp_name));
    }
  }
  const Array array(object, name);
  return array.integer_values();
}

std::vector<Token> tokens_of(py::handle object, const char* name) {
  const std::vector<std::int64_t> ids = integers_of(object, name);
  std::vector<Token> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) {
    if (id < std::numeric_limits<Token>::min() || id > std::numeric_limits<Token>::max()) {
      throw InvalidArgument(
          fmt::format("{}: {} is not a token id; expected a number of 32 bits", name, id));
    }
    tokens.push_back(static_cast<Token>(id));
  }
  return tokens;
}

}  // namespace topkv::python
