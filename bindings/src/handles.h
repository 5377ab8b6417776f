// What the Python classes hold: the C++ object, who is using it, and what it must keep alive.
#pragma once

#include <fmt/format.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/src/array.h"
#include "bindings/src/exclusive.h"
#include "bindings/src/gil.h"
#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/error.h"
#include "topkv/key_index.h"
#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv::python {

namespace py = pybind11;

using WithoutGil = py::call_guard<GilReleased>;

/// pybind11 holds objects by pointers to non-const; nothing here writes through them.
using ContextPtr = std::shared_ptr<Context>;
inline ContextPtr unconst(const std::shared_ptr<const Context>& context) {
  return std::const_pointer_cast<Context>(context);
}

/// A device, or None for the host.
inline Device device_of(const py::object& device) {
  if (device.is_none()) return {};
  if (py::isinstance<py::str>(device)) return Device::open(py::cast<std::string>(device));
  if (!py::isinstance<Device>(device)) {
    throw InvalidArgument(
        fmt::format("device is {}; expected a topkv.Device or its name, as \"cpu\"",
                    py::cast<std::string>(py::repr(device))));
  }
  return py::cast<Device>(device);
}

/// Number of a CUDA device as arrays have it, or `host`; Device::name ends with "(cuda:N)".
inline int number_of(const Device& device) {
  if (!device.is_cuda()) return host;
  const std::string name = device.name();
  int number = 0;
  const std::size_t at = name.rfind("cuda:") + 5;
  std::from_chars(name.data() + at, name.data() + name.size(), number);
  return number;
}

/// A stream as PyTorch gives it, where 0 is the legacy default stream; to topkv null means its own
/// stream, and CUDA's handle of the legacy one is 1.
inline void* stream_of(std::uintptr_t stream) {
  return reinterpret_cast<void*>(stream == 0 ? 1 : stream);  // NOLINT: a handle, no address
}

struct Index {
  std::shared_ptr<KeyIndex> index;
  bool of_context;  ///< kept alive by its context, and not to be changed
  std::vector<Array> arrays = {};
  Exclusive use = {};

  explicit Index(std::shared_ptr<KeyIndex> made, bool belongs_to_context = false)
      : index(std::move(made)), of_context(belongs_to_context) {}
};

struct Builder {
  ContextBuilder builder;
  int device;
  Exclusive use = {};

  explicit Builder(ContextBuilder made)
      : builder(std::move(made)), device(number_of(builder.device())) {}
};

struct SessionHandle {
  Session session;
  std::shared_ptr<const Context> context;
  int device;
  Exclusive use = {};

  SessionHandle(Session made, std::shared_ptr<const Context> of)
      : session(std::move(made)), context(std::move(of)), device(number_of(session.device())) {}
};

/// A recurrent state that Python gets.
inline py::array_t<float> copy_of(std::span<const float> values) {
  return py::array_t<float>(std::ssize(values), values.data());
}

/// The queries that meet earlier chunks, or None.
struct EarlierQueries {
  py::object next, far;
};

/// The tensors of a trained indexer, or None. firsts: the position of the first token in each
/// session, or in the one context.
struct IndexTensors {
  py::object q, k, weights;
  std::vector<std::int64_t> firsts = {};
};

/// The step that the arguments of an attend(...) of Python stand for. out and lse are made or
/// checked; what the step points to lives as long as this object. sessions: arrays have a first
/// axis of so many; 0: they have none.
class Step {
 public:
  Step(const AttentionShape& shape, int device, std::int64_t layer, py::handle q, py::handle k,
       py::handle v, const py::object& out, const py::object& lse, std::int64_t kv_first,
       std::int64_t kv_tokens, std::uintptr_t stream, const EarlierQueries& earlier,
       const IndexTensors& index, std::int64_t sessions = 0);

  const AttentionStep& step() const { return step_; }
  const py::object& out() const { return out_; }

 private:
  void take_index(const AttentionShape& shape, int device, const IndexTensors& index,
                  std::int64_t sessions);

  py::object out_;
  std::vector<Array> arrays_;
  AttentionStep step_;
};

/// warnings.warn, for the line of Python that called. Raises where warnings are errors.
void warn(const std::string& warning);

void bind_types(py::module_& module);
void bind_device(py::module_& module);
void bind_index(py::module_& module);
/// Indices that an application writes in Python.
void bind_own_index(py::module_& module);
void bind_attention(py::module_& module);
void bind_builder(py::module_& module);
void bind_context(py::module_& module);
void bind_context_file(py::module_& module);
void bind_session(py::module_& module);
void bind_tokenizer(py::module_& module);
void bind_chat_template(py::module_& module);
void bind_model(py::module_& module);
/// Options and results of generation, and what checks the sampler.
void bind_generation(py::module_& module);
/// What of a Model generates.
void bind_generate(py::module_& module, py::class_<Model, std::shared_ptr<Model>>& model);
/// What evaluates, for the submodule _eval: topkv.eval is its only user.
void bind_eval_tasks(py::module_& module);
void bind_eval_results(py::module_& module);

}  // namespace topkv::python
