#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include "bindings/src/handles.h"
#include "topkv/types.h"

namespace topkv::python {

void bind_types(py::module_& module) {
  py::class_<AttentionShape>(
      module, "AttentionShape",
      "The shape of a model's attention, and what each layer attends and keeps.\n\n"
      "scale: factor on q·k before the softmax; 0: 1/sqrt(head_dim).\n"
      "softcap: a scaled score s becomes softcap * tanh(s / softcap); 0: no cap.\n"
      "sliding_window: for each layer the number of last tokens that it attends, 0: all; empty: "
      "every layer attends all.\n"
      "chunk_len: tokens of a chunk in dual chunk attention; 0: one query meets all keys.\n"
      "row_layer: for each layer the layer whose rows it attends, itself or an earlier one; empty: "
      "every layer has rows of its own.\n"
      "state_size: for each layer the float32 values of its recurrent state, 0: it is attention; "
      "empty: every layer is attention.\n"
      "sliding_kv_heads: KV heads of layers with a sliding window; 0: kv_heads.\n"
      "sliding_head_dim: elements of a head in layers with a sliding window; 0: head_dim.\n"
      "keys_are_values: whether the value of a token is its key. Then one vector is stored for "
      "both, "
      "and v is None.")
      .def(py::init([](std::int64_t layers, std::int64_t q_heads, std::int64_t kv_heads,
                       std::int64_t head_dim, float scale, float softcap,
                       std::vector<std::int64_t> sliding_window, std::int64_t chunk_len,
                       std::vector<std::int64_t> row_layer, std::vector<std::int64_t> state_size,
                       std::int64_t sliding_kv_heads, std::int64_t sliding_head_dim,
                       bool keys_are_values) {
             AttentionShape shape{layers,
                                  q_heads,
                                  kv_heads,
                                  head_dim,
                                  scale,
                                  softcap,
                                  std::move(sliding_window),
                                  chunk_len,
                                  std::move(row_layer),
                                  std::move(state_size),
                                  sliding_kv_heads,
                                  sliding_head_dim,
                                  keys_are_values};
             shape.check();
             return shape;
           }),
           py::arg("layers"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
           py::arg("scale") = 0.0F, py::arg("softcap") = 0.0F,
           py::arg("sliding_window") = std::vector<std::int64_t>(), py::arg("chunk_len") = 0,
           py::arg("row_layer") = std::vector<std::int64_t>(),
           py::arg("state_size") = std::vector<std::int64_t>(), py::arg("sliding_kv_heads") = 0,
           py::arg("sliding_head_dim") = 0, py::arg("keys_are_values") = false)
      .def_readonly("layers", &AttentionShape::layers)
      .def_readonly("q_heads", &AttentionShape::q_heads)
      .def_readonly("kv_heads", &AttentionShape::kv_heads)
      .def_readonly("head_dim", &AttentionShape::head_dim)
      .def_readonly("scale", &AttentionShape::scale)
      .def_readonly("softcap", &AttentionShape::softcap)
      .def_readonly("sliding_window", &AttentionShape::sliding_window)
      .def_readonly("chunk_len", &AttentionShape::chunk_len)
      .def_readonly("row_layer", &AttentionShape::row_layer)
      .def_readonly("state_size", &AttentionShape::state_size)
      .def_readonly("sliding_kv_heads", &AttentionShape::sliding_kv_heads)
      .def_readonly("sliding_head_dim", &AttentionShape::sliding_head_dim)
      .def_readonly("keys_are_values", &AttentionShape::keys_are_values)
      .def_property_readonly("group", &AttentionShape::group, "Query heads per KV head.")
      .def_property_readonly("softmax_scale", &AttentionShape::softmax_scale,
                             "scale, or 1/sqrt(head_dim) if scale is 0.")
      .def("__repr__", [](const AttentionShape& s) {
        std::string rest;
        if (s.scale != 0) rest += fmt::format(", scale={}", s.scale);
        if (s.softcap != 0) rest += fmt::format(", softcap={}", s.softcap);
        if (!s.sliding_window.empty()) {
          rest += fmt::format(", sliding_window=[{}]", fmt::join(s.sliding_window, ", "));
        }
        if (s.chunk_len != 0) rest += fmt::format(", chunk_len={}", s.chunk_len);
        if (!s.row_layer.empty())
          rest += fmt::format(", row_layer=[{}]", fmt::join(s.row_layer, ", "));
        if (!s.state_size.empty())
          rest += fmt::format(", state_size=[{}]", fmt::join(s.state_size, ", "));
        if (s.sliding_kv_heads != 0)
          rest += fmt::format(", sliding_kv_heads={}", s.sliding_kv_heads);
        if (s.sliding_head_dim != 0)
          rest += fmt::format(", sliding_head_dim={}", s.sliding_head_dim);
        if (s.keys_are_values) rest += ", keys_are_values=True";
        return fmt::format("AttentionShape(layers={}, q_heads={}, kv_heads={}, head_dim={}{})",
                           s.layers, s.q_heads, s.kv_heads, s.head_dim, rest);
      });
}

}  // namespace topkv::python
