// Recurrent states of layers, alike in context builders and sessions.
#pragma once

#include <fmt/format.h>

#include <string>

#include "bindings/src/handles.h"

namespace topkv::python {

/// A recurrent state that Python gives: [values], float32, contiguous, in host memory.
class StateValues {
 public:
  explicit StateValues(py::handle object) : array_(object, "state") {}
  std::span<const float> span() const {
    const float* values = array_.floats({{"state_size", Array::any_size}});
    return {values, static_cast<std::size_t>(array_.size(0))};
  }

 private:
  Array array_;
};

/// Adds advance, state, snapshot and reachable to a class. object: its ContextBuilder or Session.
/// busy: what it is, in the error of a second thread. tokens: the name of the argument of
/// reachable. state: the docstring of state. Names and docstrings are copied or literals.
template <class Handle, class Object>
void bind_states(py::class_<Handle>& type, Object Handle::*object, const char* busy,
                 const char* tokens, const char* state) {
  const std::string reachable = fmt::format(
      "The most tokens, at most `{}`, that truncate() can keep: recurrent states go back to "
      "snapshots, to the token before the last advance(), and to 0.",
      tokens);
  type.def(
      "advance",
      [=](Handle& self, std::int64_t layer, std::int64_t count, py::handle values) {
        const StateValues given(values);
        const Exclusive::Write use(self.use, busy);
        (self.*object).advance(layer, count, given.span());
      },
      py::arg("layer"), py::arg("tokens"), py::arg("state"),
      "Gives a layer with a recurrent state its next `tokens` tokens: its state after them, "
      "[state_size], f32, contiguous, in host memory. Call it before or after the attention of "
      "these tokens.");
  type.def(
      "state",
      [=](Handle& self, std::int64_t layer) {
        const Exclusive::Read use(self.use, busy);
        return copy_of((self.*object).state(layer));
      },
      py::arg("layer"), state);
  type.def(
      "snapshot",
      [=](Handle& self) {
        const Exclusive::Write use(self.use, busy);
        (self.*object).snapshot();
      },
      "Keeps the present recurrent states, so that truncate() can come back to this token.");
  type.def(
      "reachable",
      [=](Handle& self, std::int64_t most) {
        const Exclusive::Read use(self.use, busy);
        return (self.*object).reachable(most);
      },
      py::arg(tokens), reachable.c_str());
}

}  // namespace topkv::python
