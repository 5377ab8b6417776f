#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "src/core/math/row_format.h"
#include "topkv/context_file.h"

namespace topkv::python {
namespace {

/// A read-only NumPy array [tokens, head_dim] of rows in place, which keeps the context alive; of
/// rows in blocks, which NumPy lacks, a copy in float32.
py::array view_of(const ContextPtr& context, const KeyView& rows) {
  if (in_blocks(rows.dtype)) {
    py::array_t<float> wide({rows.count, rows.dim});
    for (std::int64_t i = 0; i < rows.count; ++i) decode(rows, i, wide.mutable_data(i, 0));
    return wide;
  }
  const py::dtype dtype(rows.dtype == DType::f32 ? "f4" : rows.dtype == DType::f16 ? "f2" : "u2");
  py::array array(dtype, std::vector<std::int64_t>{rows.count, rows.dim},
                  std::vector<std::int64_t>{rows.stride_bytes, bytes_of(rows.dtype)}, rows.data,
                  py::cast(context));
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

std::unique_ptr<Index> index_of(const ContextPtr& context, const std::string& spec,
                                std::int64_t layer, std::int64_t kv_head) {
  const KeyIndex& index = context->index(spec, layer, kv_head);
  // Lives as long as the context; Index::of_context holds who would change it off.
  std::shared_ptr<KeyIndex> shared(context, const_cast<KeyIndex*>(&index));
  return std::make_unique<Index>(std::move(shared), true);
}

std::vector<std::byte> bytes_of(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  if (info.itemsize != 1 || info.ndim != 1 || (info.size > 0 && info.strides[0] != 1))
    throw InvalidArgument("application_data is no sequence of bytes; give bytes");
  const auto* first = static_cast<const std::byte*>(info.ptr);
  return {first, first + info.size};
}

void save(const Context& self, const std::filesystem::path& path, std::string model,
          std::string made_with, std::int64_t length, const py::object& tokens,
          std::string text_left, bool chat, std::string system, const py::buffer& application_data,
          const py::object& progress) {
  ContextOrigin origin = {
      .model = std::move(model),
      .made_with = std::move(made_with),
      .length = length,
      .end = {.text_left = std::move(text_left), .chat = chat, .system = std::move(system)},
      .application_data = bytes_of(application_data)};
  if (!tokens.is_none()) {
    origin.tokens = tokens_of(tokens, "tokens");
    // To C++ none at all are ids that are not known; here that is None.
    if (origin.tokens.empty() && self.tokens() > 0)
      throw InvalidArgument(
          fmt::format("tokens is empty for a context of {} tokens; give one id for each, or None",
                      self.tokens()));
    for (const Token token : origin.tokens)
      if (token < 0)
        throw InvalidArgument(
            fmt::format("tokens: {} is not a token id; expected 0 or more", token));
  }
  const ProgressFn report = progress_of(progress);
  const GilReleased released;
  save_context(self, path, origin, report);
}

}  // namespace

void bind_context(py::module_& module) {
  py::class_<ContextMemory>(module, "ContextMemory")
      .def_readonly("rows_bytes", &ContextMemory::rows_bytes)
      .def_readonly("index_bytes", &ContextMemory::index_bytes)
      .def_readonly("queries_bytes", &ContextMemory::queries_bytes)
      .def_readonly("states_bytes", &ContextMemory::states_bytes)
      .def("__repr__", [](const ContextMemory& memory) {
        return fmt::format(
            "ContextMemory(rows_bytes={}, index_bytes={}, queries_bytes={}, states_bytes={})",
            memory.rows_bytes, memory.index_bytes, memory.queries_bytes, memory.states_bytes);
      });

  py::class_<Context, ContextPtr>(module, "Context",
                                  "One prefilled text: rows of every layer and KV head in host "
                                  "memory, and indices over the keys. Immutable; any number of "
                                  "sessions and threads share it.",
                                  py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("shape", &Context::shape, py::return_value_policy::copy)
      .def_property_readonly("tokens", &Context::tokens)
      .def_property_readonly("dtype", [](const Context& self) { return self.dtype().name(); })
      .def("memory", &Context::memory)
      .def("indices", &Context::indices,
           "Specs of the context's indices, with all defaults spelled out.")
      .def("has_index", &Context::has_index, py::arg("spec"),
           "Whether the context has the index of this spec, in any spelling.")
      .def(
          "keys",
          [](const ContextPtr& self, std::int64_t layer, std::int64_t kv_head) {
            return view_of(self, self->rows(layer, kv_head).keys);
          },
          py::arg("layer"), py::arg("kv_head"),
          "Keys [tokens - first_row(layer), head_dim] in place, read-only. bf16 rows, which NumPy "
          "lacks, are a uint16 "
          "view; q8 and q4 rows are a copy in float32.")
      .def(
          "values",
          [](const ContextPtr& self, std::int64_t layer, std::int64_t kv_head) {
            return view_of(self, self->rows(layer, kv_head).values);
          },
          py::arg("layer"), py::arg("kv_head"), "Values, as keys().")
      .def("first_row", &Context::first_row, py::arg("layer"),
           "The number of the first token whose rows a layer has: above 0 for a layer with a "
           "sliding window, whose earlier rows no later token attends.")
      .def(
          "state",
          [](const Context& self, std::int64_t layer) { return copy_of(self.state(layer)); },
          py::arg("layer"), "A copy of the recurrent state of a layer after the last token.")
      .def("index", &index_of, py::arg("spec"), py::arg("layer"), py::arg("kv_head"),
           "The index of one layer and KV head, for searching. spec: in any spelling.")
      .def(
          "with_index",
          [](const ContextPtr& self, const std::string& spec, const py::object& progress,
             const py::object& device) {
            const ProgressFn report = progress_of(progress);
            const Device where = device_of(device);
            const GilReleased released;
            return unconst(self->with_index(spec, report, where));
          },
          py::arg("spec"), py::arg("progress") = py::none(), py::arg("device") = py::none(),
          "Returns a context over these rows that has this index too.\n\n"
          "progress: called with a Progress, several times a second. An exception in it, and "
          "Ctrl-C, end the building within about a second.\n\n"
          "device: a topkv.Device or its name. It makes codes of rows that a CUDA device "
          "prefilled, and clusters keys (squeezed, retroinfer). Without it the host's threads do.")
      .def(
          "with_tokens",
          [](const ContextPtr& self, const py::object& tokens) {
            const std::vector<Token> ids = tokens_of(tokens, "tokens");
            const GilReleased released;
            return unconst(self->with_tokens(ids));
          },
          py::arg("tokens"),
          "Returns a context over these rows that knows its tokens, all of them. Sessions over it "
          "look in them for drafts. Model.prefill names the tokens itself, and so does "
          "load_context if the file has them.")
      .def_property_readonly(
          "knows_tokens", [](const ContextPtr& self) { return self->knows_tokens(); },
          "Whether it knows its tokens.")
      .def(
          "ready_for",
          [](const ContextPtr& self, const std::string& index, const std::string& tail,
             const py::object& progress, const py::object& device) {
            const ProgressFn report = progress_of(progress);
            const Device where = device_of(device);
            const GilReleased released;
            return unconst(self->ready_for({.index = index, .tail = tail}, report, where));
          },
          py::arg("index") = "exact", py::arg("tail") = "", py::arg("progress") = py::none(),
          py::arg("device") = py::none(),
          "Returns a context over these rows that sessions with this index and tail can open: it "
          "builds what this context lacks. Returns this context itself when it lacks nothing.\n\n"
          "index, tail: as for Session. The tails \"\" and \"none\" need nothing to be built.\n\n"
          "progress, device: as for with_index. The stage of a Progress is \"index\", then "
          "\"tail\".\n\n"
          "Raises InvalidArgument for an invalid index or tail before anything is built.")
      .def(
          "save", &save, py::arg("path"), py::kw_only(), py::arg("model") = "",
          py::arg("made_with") = "", py::arg("length") = 0, py::arg("tokens") = py::none(),
          py::arg("text_left") = "", py::arg("chat") = false, py::arg("system") = "",
          py::arg("application_data") = py::bytes(), py::arg("progress") = py::none(),
          "Writes the context to a file, which load_context reads. The file takes its name when it "
          "is whole; an earlier file stays until then.\n\n"
          "model: your name for the network; whoever loads the rows compares it.\n\n"
          "made_with: how the rows were made, for people, one line.\n\n"
          "length: the length that Model.load was given, for which keys are rotated; 0: none, or "
          "unknown.\n\n"
          "tokens: all ids of the text, [tokens]; None: unknown.\n\n"
          "text_left, chat, system: how a prompt continues (see LoadedContext): the text after the "
          "last token, whether the text is in a question of the model's chat template, and the "
          "system message before it.\n\n"
          "application_data: bytes of your own that the file keeps beside the rows, such as the "
          "states of layers that you compute yourself; LoadedContext.application_data has them.\n\n"
          "progress: called with a Progress, stage \"save\", in bytes. An exception in it, and "
          "Ctrl-C, end the saving. The earlier file is then there; after the last report the new "
          "one is.\n\n"
          "Raises FileError (before anything is written, if the disk has no room), and "
          "InvalidArgument for another number of ids.")
      .def("__repr__", [](const Context& self) {
        return fmt::format("<Context of {} tokens, {} layers, {} rows, indices: {}>", self.tokens(),
                           self.shape().layers, self.dtype().name(),
                           fmt::join(self.indices(), ", "));
      });
}

}  // namespace topkv::python
