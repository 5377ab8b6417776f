// Arrays of Python as views: whatever has the buffer protocol or __dlpack__ (NumPy, PyTorch on the
// CPU and on CUDA, ...). Nothing is copied and nothing waits: work on CUDA is ordered by the stream
// that a call is given.
//
// Ownership: an Array keeps the memory alive, and may outlive the Python object it was made of.
// Threads: made with the GIL held; may be destroyed without it.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv::python {

namespace py = pybind11;

enum class Element : std::uint8_t { f32, f16, bf16, i32, i64, other };

/// Number of the host in Array::device and Wanted::device; CUDA devices count from 0.
inline constexpr int host = -1;

/// Every expectation below throws InvalidArgument that says what was found, expected and to do.
class Array {
 public:
  /// name: the parameter, for messages. Throws InvalidArgument when the object is no array or
  /// cannot be had without a copy. Arrays of uint16 are bf16, as NumPy has no such type.
  Array(py::handle object, const char* name);

  std::int64_t rank() const { return static_cast<std::int64_t>(shape_.size()); }
  std::int64_t size(std::size_t axis) const { return shape_[axis]; }
  std::int64_t stride(std::size_t axis) const { return strides_[axis]; }  ///< in elements
  const std::vector<std::int64_t>& shape() const { return shape_; }
  Element element() const { return element_; }

  /// An extent that is expected: its size, or any_size, and how messages call it.
  struct Extent {
    const char* name;
    std::int64_t size;
  };
  static constexpr std::int64_t any_size = -1;

  /// float32, contiguous and aligned, on this device.
  const float* floats(const std::vector<Extent>& shape, int device = host) const;
  /// The same, and may be written.
  float* floats_out(const std::vector<Extent>& shape, int device = host) const;
  /// float32 of any shape, contiguous and aligned, on the host.
  const float* floats() const;
  float* floats_out() const;
  /// f32, f16 or bf16 [tokens, heads, head_dim] on the host; tokens and heads may stride.
  TensorView tensor(std::int64_t heads, std::int64_t head_dim) const;
  /// f32, f16 or bf16 [n, dim] on the host; rows may be apart.
  KeyView keys() const;
  /// int64 [n, columns] (columns 0: [n]), contiguous, on the host.
  const std::int64_t* integers(std::int64_t columns) const;

  /// i32 or i64 [n] on the host, copied.
  std::vector<std::int64_t> integer_values() const;

  /// Throws InvalidArgument that says what was found, and `expected`.
  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  void take_buffer(py::handle object);
  void take_dlpack(py::handle object);
  void take_strides(const std::int64_t* strides);
  bool contiguous() const;
  bool are_floats(int device) const;
  float* writable() const;
  bool has_shape(const std::vector<Extent>& shape) const;
  DType row_dtype(const std::string& layout) const;
  std::string remedy(int device) const;
  std::string describe() const;

  std::string name_;
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  Element element_ = Element::other;
  std::string element_name_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  int device_ = host;
  bool writable_ = false;
};

/// Token ids or positions out of an int32 or int64 array or any sequence of Python ints. Copies.
std::vector<std::int64_t> integers_of(py::handle object, const char* name);
std::vector<Token> tokens_of(py::handle object, const char* name);

/// A new NumPy array that holds these values.
template <class T>
py::array_t<T> to_numpy(const T* values, std::int64_t count) {
  return py::array_t<T>(static_cast<py::ssize_t>(count), values);
}

}  // namespace topkv::python
