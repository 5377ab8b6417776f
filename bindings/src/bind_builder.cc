#include <fmt/format.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "bindings/src/bind_states.h"
#include "bindings/src/handles.h"
#include "bindings/src/names.h"
#include "src/context/prefill_visibility.h"
#include "src/device/compute_device.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

constexpr const char* busy = "the context builder";

std::unique_ptr<Builder> make(const AttentionShape& shape, std::int64_t capacity,
                              const std::string& dtype, std::int64_t memory_budget,
                              const std::string& prefill, std::int64_t window, std::int64_t sinks,
                              const py::object& device, std::int64_t keys,
                              std::optional<std::int64_t> least, double mass, bool measure) {
  const ContextOptions options{
      .capacity = capacity,
      .dtype = KvDType::parse(dtype),
      .attention = prefill_attention(prefill, window, sinks, keys, least, mass, measure),
      .memory_budget = memory_budget,
      .keep_queries = true};  // for experiments: h2o, tova, squeezed
  const Device where = device_of(device);
  const GilReleased released;
  return std::make_unique<Builder>(ContextBuilder(shape, options, where));
}

void append(Builder& self, std::int64_t layer, py::handle keys, py::handle values) {
  const AttentionShape& shape = self.builder.shape();
  const Array k(keys, "keys");
  std::optional<Array> v;
  if (!values.is_none()) v.emplace(values, "values");
  const bool known = layer >= 0 && layer < shape.layers;  // else the rows are refused
  const std::int64_t heads = known ? shape.kv_heads_of(layer) : shape.kv_heads;
  const std::int64_t dim = known ? shape.head_dim_of(layer) : shape.head_dim;
  const TensorView k_view = k.tensor(heads, dim);
  const TensorView v_view = v ? v->tensor(heads, dim) : TensorView();
  const Exclusive::Write use(self.use, busy);
  const GilReleased released;
  self.builder.append(layer, k_view, v_view);
}

py::object attend(Builder& self, std::int64_t layer, py::handle q, py::handle k, py::handle v,
                  const py::object& out, const py::object& lse, std::int64_t kv_first,
                  std::int64_t kv_tokens, std::uintptr_t stream, const py::object& q_next,
                  const py::object& q_far, const py::object& index_q, const py::object& index_k,
                  const py::object& index_weights) {
  const Exclusive::Write use(self.use, busy);
  const AttentionShape& shape = self.builder.shape();
  IndexTensors index{index_q, index_k, index_weights};
  if (shape.has_indexer(std::clamp<std::int64_t>(layer, 0, shape.layers - 1)))
    index.firsts = {self.builder.tokens(layer)};
  const Step step(shape, self.device, layer, q, k, v, out, lse, kv_first, kv_tokens, stream,
                  {q_next, q_far}, index);
  {
    const GilReleased released;
    self.builder.attend(step.step());
  }
  return step.out();
}

}  // namespace

void bind_builder(py::module_& module) {
  py::class_<PrefillShare>(
      module, "PrefillShare",
      "What the tokens of a sparse prefill attended in a layer. queries: tokens, once for each KV "
      "head; 0: tokens of the layer do not choose keys.")
      .def_readonly("queries", &PrefillShare::queries)
      .def_property_readonly("mass", &PrefillShare::mean_mass,
                             "The mean share of dense attention that a token met, an estimate "
                             "unless it was measured.")
      .def_property_readonly("keys", &PrefillShare::key_share,
                             "The share of earlier keys that were attended.")
      .def("__repr__", [](const PrefillShare& share) {
        return fmt::format("PrefillShare(queries={}, mass={:.4g}, keys={:.4g})", share.queries,
                           share.mean_mass(), share.key_share());
      });
  module.def(
      "resolve_prefill",
      [](const std::string& prefill, std::int64_t tokens, const py::object& device,
         const AttentionShape* shape, std::int64_t keys, std::optional<std::int64_t> memory,
         std::int64_t chunk, std::int64_t capacity, const std::string& dtype, std::int64_t window,
         std::int64_t sinks) {
        PrefillAttention attention{
            .mode = parse_prefill(prefill), .window = window, .sinks = sinks, .keys = keys};
        attention.least_keys = std::min(attention.least_keys, keys);
        const AttentionShape of = shape != nullptr ? *shape : AttentionShape();
        const Device where = device_of(device);
        if (!memory) return name_of(resolve_prefill(attention, of, tokens, where.is_cuda()).mode);
        if (shape == nullptr || chunk < 1 || capacity < 0) {
          throw InvalidArgument(
              fmt::format("memory is given with {}, a chunk of {} tokens and a capacity of {}; "
                          "expected a shape, at least 1 and at least 0",
                          shape == nullptr ? "no shape" : "a shape", chunk, capacity));
        }
        of.check();
        return name_of(fitting_prefill(attention, of, tokens, *where.compute(),
                                       {.bytes = *memory,
                                        .rows = KvDType::parse(dtype),
                                        .chunk = chunk,
                                        .capacity = capacity})
                           .mode);
      },
      py::arg("prefill"), py::arg("tokens"), py::arg("device") = py::none(), py::kw_only(),
      py::arg("shape") = py::none(), py::arg("keys") = PrefillAttention().keys,
      py::arg("memory") = py::none(), py::arg("chunk") = 8192, py::arg("capacity") = 0,
      py::arg("dtype") = "bf16", py::arg("window") = PrefillAttention().window,
      py::arg("sinks") = PrefillAttention().sinks,
      "The prefill of a text of `tokens` tokens: \"sparse\" or \"dense\" for \"auto\", and the "
      "same "
      "name for others.\n\n"
      "shape: of the model's attention; None: any that has a sparse prefill. keys: prefill_keys of "
      "the ContextBuilder.\n\n"
      "memory: the bytes of a CUDA device that the attention may take; None: any number. \"auto\" "
      "is "
      "\"dense\" if a sparse prefill takes more, with the shape, chunk (the most tokens of a call "
      "of attend()), and the capacity, dtype, keys, window and sinks of the ContextBuilder.\n\n"
      "Raises Unsupported for \"sparse\" if the device has no sparse prefill of this shape and "
      "this "
      "number of keys. \"auto\" is dense then.");
  py::class_<Builder> type(
      module, "ContextBuilder",
      "Collects the rows of a context as the network produces them. One thread at a time.\n\n"
      "capacity: tokens to reserve rows for.\n\n"
      "dtype: dtype of the stored rows: \"bf16\", \"f16\", \"f32\", or \"q8\" and \"q4\", 8.5 and "
      "5 bits an element, also as \"q8/q4\" (keys/values). A CUDA device takes bf16, q8 and q4.\n\n"
      "memory_budget: bytes that the rows may take; 0: the free memory.\n\n"
      "prefill: the tokens that attend() lets a token see: \"dense\" (all earlier ones), "
      "\"window\" (the first `sinks` and the last `window`) or \"sparse\" (these, and blocks of 64 "
      "keys in between that each block of 128 tokens chooses for itself). resolve_prefill() says "
      "which of them \"auto\" would be.\n\n"
      "prefill_keys: with \"sparse\", the most keys that a block of tokens chooses for each KV "
      "head. prefill_least: the fewest; None: 512, or prefill_keys if that is less. prefill_mass: "
      "no more keys are chosen once this share of attention is met; 1: always prefill_keys. "
      "prefill_measure: share() has the exact share of attention that sampled tokens meet, not an "
      "estimate; on the host alone.",
      py::release_gil_before_calling_cpp_dtor());
  bind_states(type, &Builder::builder, busy, "tokens",
              "A copy of the recurrent state of a layer after its last token; empty before the "
              "first.");
  type.def(py::init(&make), py::arg("shape"), py::arg("capacity"), py::arg("dtype") = "bf16",
           py::arg("memory_budget") = 0, py::arg("prefill") = "dense", py::arg("window") = 1024,
           py::arg("sinks") = 4, py::arg("device") = py::none(), py::kw_only(),
           py::arg("prefill_keys") = PrefillAttention().keys, py::arg("prefill_least") = py::none(),
           py::arg("prefill_mass") = PrefillAttention().mass, py::arg("prefill_measure") = false)
      .def(
          "reserve",
          [](Builder& self, std::int64_t tokens, std::int64_t chunk) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.builder.reserve(tokens, chunk);
          },
          py::arg("tokens"), py::arg("chunk") = 0,
          "Makes room for `tokens` tokens in total; both copies are in memory for a moment. chunk: "
          "the most tokens of later steps, for which a CUDA device takes its memory now.")
      .def(
          "synchronize",
          [](Builder& self) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.builder.synchronize();
          },
          "Waits until all rows given to a CUDA device are in host memory.")
      .def(
          "truncate",
          [](Builder& self, std::int64_t tokens) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.builder.truncate(tokens);
          },
          py::arg("tokens"),
          "Forgets the tokens from number `tokens` on, in all layers: rejected speculative tokens, "
          "or tokens of a step that not all layers have taken. With recurrent states and sliding "
          "windows, tokens must be reachable(tokens).")
      .def(
          "resume",
          [](Builder& self, const Context& context) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.builder.resume(context);
          },
          py::arg("context"),
          "Gives the builder, which has no tokens yet, a copy of all that a context of the same "
          "shape and dtype holds, so that a text can be read on.")
      .def(
          "append", &append, py::arg("layer"), py::arg("keys"), py::arg("values"),
          "Appends K (post-RoPE) and V of the next tokens of a layer: [tokens, kv_heads, head_dim] "
          "in any strides, f32, f16 or bf16, in host memory. values is None when keys are values.")
      .def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("out") = py::none(), py::arg("lse") = py::none(), py::arg("kv_first") = 0,
           py::arg("kv_tokens") = -1, py::arg("stream") = 0, py::arg("q_next") = py::none(),
           py::arg("q_far") = py::none(), py::kw_only(), py::arg("index_q") = py::none(),
           py::arg("index_k") = py::none(), py::arg("index_weights") = py::none(),
           "Appends k and v of the next tokens of a layer, and returns their causal attention, "
           "[tokens, q_heads, head_dim]. Every layer of attention takes the same tokens in turn, "
           "the first layer first.\n\n"
           "q [tokens, q_heads, head_dim], k and v [tokens, kv_heads, head_dim]: f32, contiguous, "
           "on the builder's device. k and v are None in a layer that attends the rows of another "
           "layer.\n\n"
           "out, lse [tokens, q_heads]: arrays for the results; lse is optional, and out is "
           "optional on the host.\n\n"
           "kv_first, kv_tokens: the tokens that k and v belong to, for contexts sharded by "
           "sequence; -1: all.\n\n"
           "stream: on a CUDA device, the handle of the stream that makes the inputs and uses out; "
           "0: the default stream.\n\n"
           "q_next, q_far: with AttentionShape.chunk_len, the queries that meet the chunk before a "
           "token's own, and all earlier chunks; shaped like q.\n\n"
           "index_q [tokens, indexer.heads, indexer.dim], index_k [keys, indexer.dim], "
           "index_weights [tokens, indexer.heads]: in a layer that chooses with a trained indexer "
           "(AttentionShape.indexer), its index queries, the index keys that the tokens complete "
           "(one a token with tokens_per_key 1), and weights; without weights, all are 1.")
      .def(
          "tokens",
          [](Builder& self, std::int64_t layer) {
            const Exclusive::Look use(self.use, busy);
            return self.builder.tokens(layer);
          },
          py::arg("layer"), "Tokens given to the layer.")
      .def(
          "share",
          [](Builder& self, std::int64_t layer) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            return self.builder.share(layer);
          },
          py::arg("layer"),
          "What the tokens given to attend() attended in the layer, as a PrefillShare. Without "
          "queries unless prefill is \"sparse\".")
      .def_property_readonly("capacity",
                             [](Builder& self) {
                               const Exclusive::Look use(self.use, busy);
                               return self.builder.capacity();
                             })
      .def_property_readonly("shape", [](const Builder& self) { return self.builder.shape(); })
      .def_property_readonly("device", [](const Builder& self) { return self.builder.device(); })
      .def(
          "freeze",
          [](Builder& self) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            return unconst(self.builder.freeze());
          },
          "Makes the rows a Context with the \"exact\" index. The builder is empty afterwards.")
      .def("__repr__", [](const Builder& self) {
        const AttentionShape& shape = self.builder.shape();
        return fmt::format("<ContextBuilder of {} layers x {} KV heads x {}, on {}>", shape.layers,
                           shape.kv_heads, shape.head_dim, self.builder.device().name());
      });
}

}  // namespace topkv::python
