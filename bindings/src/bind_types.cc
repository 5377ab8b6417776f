#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/src/handles.h"
#include "topkv/types.h"

namespace topkv::python {

namespace {

std::string text_of(const IndexerShape& of) {
  return fmt::format(
      "IndexerShape(dim={}, heads={}, choices={}, score='{}', tokens_per_key={}, block={}, top={}, "
      "local_blocks={}, dtype='{}')",
      of.dim, of.heads, of.choices, name_of(of.score), of.tokens_per_key, of.block, of.top,
      of.local_blocks, name_of(of.dtype));
}

void bind_indexer_shape(py::module_& module) {
  py::class_<IndexerShape>(
      module, "IndexerShape",
      "The shape of a trained indexer: a part of a model that chooses the rows that a token "
      "attends, by index keys and index queries of its own. Layers with an indexer attend their "
      "choice alone.\n\n"
      "dim: elements of an index key.\n"
      "heads: index queries of a token.\n"
      "choices: choices of a token: 1, which all KV heads share, or kv_heads. heads / choices "
      "index queries score a choice together.\n"
      "score: \"relu\": the sum of w max(q·k, 0) over these queries; \"dot\": the sum of w "
      "(q·k).\n"
      "tokens_per_key: tokens that have one index key. The tokens after the last complete group "
      "are "
      "always attended.\n"
      "block: keys that are chosen together, by their largest score.\n"
      "top: blocks that a token chooses, local blocks included.\n"
      "local_blocks: the last blocks that a token sees, which are always chosen.\n"
      "dtype: how index keys are stored, \"f32\" or \"bf16\".")
      .def(py::init([](std::int64_t dim, std::int64_t heads, std::int64_t choices,
                       const std::string& score, std::int64_t tokens_per_key, std::int64_t block,
                       std::int64_t top, std::int64_t local_blocks, const std::string& dtype) {
             return IndexerShape{
                 dim,   heads, choices,      parse_index_score(score), tokens_per_key,
                 block, top,   local_blocks, parse_dtype(dtype)};
           }),
           py::arg("dim") = 128, py::arg("heads") = 1, py::arg("choices") = 1,
           py::arg("score") = "relu", py::arg("tokens_per_key") = 1, py::arg("block") = 1,
           py::arg("top") = 2048, py::arg("local_blocks") = 0, py::arg("dtype") = "f32")
      .def_readonly("dim", &IndexerShape::dim)
      .def_readonly("heads", &IndexerShape::heads)
      .def_readonly("choices", &IndexerShape::choices)
      .def_property_readonly("score", [](const IndexerShape& of) { return name_of(of.score); })
      .def_readonly("tokens_per_key", &IndexerShape::tokens_per_key)
      .def_readonly("block", &IndexerShape::block)
      .def_readonly("top", &IndexerShape::top)
      .def_readonly("local_blocks", &IndexerShape::local_blocks)
      .def_property_readonly("dtype", [](const IndexerShape& of) { return name_of(of.dtype); })
      .def("completed", &IndexerShape::completed, py::arg("first"), py::arg("tokens"),
           "The number of index keys that `tokens` tokens from position `first` on complete: the "
           "keys of index_k in attend().")
      .def(
          "__eq__", [](const IndexerShape& a, const IndexerShape& b) { return a == b; },
          py::is_operator())
      .def("__repr__", &text_of);
}

}  // namespace

void bind_types(py::module_& module) {
  bind_indexer_shape(module);
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
      "and v is None.\n"
      "indexer: the trained indexer that chooses the rows that layers attend; None: the model has "
      "none. On a CPU alone.\n"
      "indexer_layer: for each layer its own number if it chooses, the number of an earlier layer "
      "whose choice it attends, or -1: no indexer; empty: every layer chooses.")
      .def(py::init([](std::int64_t layers, std::int64_t q_heads, std::int64_t kv_heads,
                       std::int64_t head_dim, float scale, float softcap,
                       std::vector<std::int64_t> sliding_window, std::int64_t chunk_len,
                       std::vector<std::int64_t> row_layer, std::vector<std::int64_t> state_size,
                       std::int64_t sliding_kv_heads, std::int64_t sliding_head_dim,
                       bool keys_are_values, std::optional<IndexerShape> indexer,
                       std::vector<std::int64_t> indexer_layer) {
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
                                  keys_are_values,
                                  indexer,
                                  std::move(indexer_layer)};
             shape.check();
             return shape;
           }),
           py::arg("layers"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
           py::arg("scale") = 0.0F, py::arg("softcap") = 0.0F,
           py::arg("sliding_window") = std::vector<std::int64_t>(), py::arg("chunk_len") = 0,
           py::arg("row_layer") = std::vector<std::int64_t>(),
           py::arg("state_size") = std::vector<std::int64_t>(), py::arg("sliding_kv_heads") = 0,
           py::arg("sliding_head_dim") = 0, py::arg("keys_are_values") = false,
           py::arg("indexer") = py::none(), py::arg("indexer_layer") = std::vector<std::int64_t>())
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
      .def_readonly("indexer", &AttentionShape::indexer)
      .def_readonly("indexer_layer", &AttentionShape::indexer_layer)
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
        if (s.indexer) rest += ", indexer=" + text_of(*s.indexer);
        if (!s.indexer_layer.empty())
          rest += fmt::format(", indexer_layer=[{}]", fmt::join(s.indexer_layer, ", "));
        return fmt::format("AttentionShape(layers={}, q_heads={}, kv_heads={}, head_dim={}{})",
                           s.layers, s.q_heads, s.kv_heads, s.head_dim, rest);
      });
}

}  // namespace topkv::python
