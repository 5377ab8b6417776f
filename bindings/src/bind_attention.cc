// Partials: arrays out [..., head_dim] and lse [...] that C++ reads and writes in place.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/src/handles.h"
#include "topkv/attention.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

struct PyPartial {
  py::object out;
  py::object lse;
};

/// A partial's arrays, checked.
struct Parts {
  Array out;
  Array lse;
  std::int64_t heads = 1;
  std::int64_t head_dim = 0;

  explicit Parts(const PyPartial& partial) : out(partial.out, "out"), lse(partial.lse, "lse") {
    const auto& shape = out.shape();
    if (shape.empty() ||
        !std::equal(shape.begin(), shape.end() - 1, lse.shape().begin(), lse.shape().end())) {
      throw InvalidArgument(fmt::format(
          "a partial of out [{}] and lse [{}]; expected out [heads, head_dim] and lse [heads]",
          fmt::join(shape, ", "), fmt::join(lse.shape(), ", ")));
    }
    head_dim = shape.back();
    for (const std::int64_t size : lse.shape()) heads *= size;
  }

  PartialView writable() const { return {out.floats_out(), lse.floats_out(), heads, head_dim}; }
  /// For reading alone: merge does not write to its second argument.
  PartialView readable() const {
    return {const_cast<float*>(out.floats()), const_cast<float*>(lse.floats()), heads, head_dim};
  }
};

py::array_t<float> copy_of(const Array& array) {
  py::array_t<float> copy(array.shape());
  const float* values = array.floats();
  std::copy(values, values + copy.size(), copy.mutable_data());
  return copy;
}

void merge_into(const PyPartial& into, const PyPartial& other) {
  const Parts a(into);
  const Parts b(other);
  const PartialView target = a.writable();
  const PartialView source = b.readable();
  const GilReleased released;
  merge(target, source);
}

PyPartial merged(const PyPartial& a, const PyPartial& b) {
  const Parts parts(a);
  PyPartial result{copy_of(parts.out), copy_of(parts.lse)};
  merge_into(result, b);
  return result;
}

PyPartial attend(py::handle queries, py::handle keys, py::handle values, py::handle positions,
                 float scale, float softcap) {
  const Array q(queries, "queries");
  const Array k(keys, "keys");
  const Array v(values, "values");
  const KeyView key_rows = k.keys();
  const KeyView value_rows = v.keys();
  if (value_rows.count != key_rows.count || value_rows.dim != key_rows.dim ||
      value_rows.dtype != key_rows.dtype || value_rows.stride_bytes != key_rows.stride_bytes) {
    v.refuse(fmt::format("the layout of keys: {} [{}, {}], rows {} bytes apart",
                         name_of(key_rows.dtype), key_rows.count, key_rows.dim,
                         key_rows.stride_bytes));
  }
  const float* q_data = q.floats({{"heads", Array::any_size}, {"head_dim", key_rows.dim}});
  const std::vector<std::int64_t> at = integers_of(positions, "positions");
  for (const std::int64_t position : at) {
    if (position >= 0 && position < key_rows.count) continue;
    throw InvalidArgument(fmt::format("positions: {} is not in [0, {}), the rows there are",
                                      position, key_rows.count));
  }
  const std::int64_t heads = q.size(0);
  py::array_t<float> out({heads, key_rows.dim});
  py::array_t<float> lse(heads);
  const PartialView target{out.mutable_data(), lse.mutable_data(), heads, key_rows.dim};
  const RowsView rows{key_rows, value_rows};
  {
    const GilReleased released;
    attend_rows(q_data, rows, at, scale, target, softcap);
  }
  return {std::move(out), std::move(lse)};
}

}  // namespace

void bind_attention(py::module_& module) {
  py::class_<PyPartial>(
      module, "Partial",
      "Attention over a subset of the keys, in float32: out [heads, head_dim], normalised, and lse "
      "[heads], the log-sum-exp of the scores. Keeps the given arrays. There may be more axes "
      "before the last (tokens, heads).")
      .def(py::init([](py::object out, py::object lse) {
             PyPartial partial{std::move(out), std::move(lse)};
             Parts(partial).readable();  // checks
             return partial;
           }),
           py::arg("out"), py::arg("lse"))
      .def_static(
          "empty",
          [](std::int64_t heads, std::int64_t head_dim) {
            if (heads < 0 || head_dim < 0) {
              throw InvalidArgument(fmt::format("a partial of {} heads x {}", heads, head_dim));
            }
            py::array_t<float> out({heads, head_dim});
            py::array_t<float> lse(heads);
            std::fill_n(out.mutable_data(), heads * head_dim, 0.0F);
            std::fill_n(lse.mutable_data(), heads, empty_lse);
            return PyPartial{std::move(out), std::move(lse)};
          },
          py::arg("heads"), py::arg("head_dim"), "The partial over no keys.")
      .def_readonly("out", &PyPartial::out)
      .def_readonly("lse", &PyPartial::lse)
      .def("__repr__", [](const PyPartial& partial) {
        return fmt::format("<Partial of out [{}]>",
                           fmt::join(Array(partial.out, "out").shape(), ", "));
      });

  module.def("merge", &merged, py::arg("a"), py::arg("b"),
             "Returns the partial over the union of two disjoint key sets.");
  module.def("merge_into", &merge_into, py::arg("into"), py::arg("other"),
             "Merges in place: writes to the arrays of `into`.");
  module.def(
      "attend_rows", &attend, py::arg("queries"), py::arg("keys"), py::arg("values"),
      py::arg("positions"), py::arg("scale"), py::arg("softcap") = 0.0F,
      "Returns the partial of queries [heads, head_dim] (f32) over the rows of keys and values [n, "
      "head_dim] (equal dtype and strides) at these positions. Scores are scale * q·k, capped if "
      "softcap > 0.");
  module.attr("empty_lse") = empty_lse;
}

}  // namespace topkv::python
