#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "src/core/row_format.h"
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

void save(const Context& self, const std::filesystem::path& path, std::string model,
          std::string made_with, std::int64_t length, const py::object& tokens,
          std::string text_left, bool chat, std::string system, const py::object& progress) {
  ContextOrigin origin = {
      .model = std::move(model),
      .made_with = std::move(made_with),
      .length = length,
      .end = {.text_left = std::move(text_left), .chat = chat, .system = std::move(system)}};
  if (!tokens.is_none()) {
    origin.tokens = tokens_of(tokens, "tokens");
    // To C++ none at all are ids that are not known; here that is None.
    if (origin.tokens.empty() && self.tokens() > 0)
      throw InvalidArgument(
          fmt::format("tokens: no ids for a context of {} tokens; give all of "
                      "them, or None",
                      self.tokens()));
    for (const Token token : origin.tokens)
      if (token < 0) throw InvalidArgument(fmt::format("tokens: {} is no token id", token));
  }
  const ProgressFn report = progress_of(progress);
  const py::gil_scoped_release release;
  save_context(self, path, origin, report);
}

}  // namespace

void bind_context(py::module_& module) {
  py::class_<ContextMemory>(module, "ContextMemory")
      .def_readonly("rows_bytes", &ContextMemory::rows_bytes)
      .def_readonly("index_bytes", &ContextMemory::index_bytes)
      .def_readonly("queries_bytes", &ContextMemory::queries_bytes)
      .def("__repr__", [](const ContextMemory& memory) {
        return fmt::format("ContextMemory(rows_bytes={}, index_bytes={}, queries_bytes={})",
                           memory.rows_bytes, memory.index_bytes, memory.queries_bytes);
      });

  py::class_<Context, ContextPtr>(module, "Context",
                                  "One prefilled text: rows of every layer and KV head in host "
                                  "memory, and indices over the keys. Immutable; shared by any "
                                  "number of sessions and threads.",
                                  py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("shape", &Context::shape, py::return_value_policy::copy)
      .def_property_readonly("tokens", &Context::tokens)
      .def_property_readonly("dtype", [](const Context& self) { return self.dtype().name(); })
      .def("memory", &Context::memory)
      .def("indices", &Context::indices, "Specs of its indices, all defaults spelled out.")
      .def("has_index", &Context::has_index, py::arg("spec"),
           "Whether it has the index that this spec names, however it is spelled.")
      .def(
          "keys",
          [](const ContextPtr& self, std::int64_t layer, std::int64_t kv_head) {
            return view_of(self, self->rows(layer, kv_head).keys);
          },
          py::arg("layer"), py::arg("kv_head"),
          "Keys [tokens, head_dim] in place, read-only. Of bf16 rows, which NumPy lacks, a uint16 "
          "view; of q8 and q4 a copy in float32.")
      .def(
          "values",
          [](const ContextPtr& self, std::int64_t layer, std::int64_t kv_head) {
            return view_of(self, self->rows(layer, kv_head).values);
          },
          py::arg("layer"), py::arg("kv_head"), "Values, as keys().")
      .def("index", &index_of, py::arg("spec"), py::arg("layer"), py::arg("kv_head"),
           "The index of one layer and KV head, for searching. spec: in any spelling.")
      .def(
          "with_index",
          [](const ContextPtr& self, const std::string& spec, const py::object& progress,
             const py::object& device) {
            const ProgressFn report = progress_of(progress);
            const Device where = device_of(device);
            const py::gil_scoped_release release;
            return unconst(self->with_index(spec, report, where));
          },
          py::arg("spec"), py::arg("progress") = py::none(), py::arg("device") = py::none(),
          "A context over the same rows that has this index too. progress is called with a "
          "Progress, several times a second. What it raises, and Ctrl-C, ends the building within "
          "about a second. device: a topkv.Device or its name; makes the codes of rows that a CUDA "
          "device prefilled, and clusters keys (squeezed, retroinfer), which the host's threads do "
          "otherwise.")
      .def(
          "save", &save, py::arg("path"), py::kw_only(), py::arg("model") = "",
          py::arg("made_with") = "", py::arg("length") = 0, py::arg("tokens") = py::none(),
          py::arg("text_left") = "", py::arg("chat") = false, py::arg("system") = "",
          py::arg("progress") = py::none(),
          "Writes it to a file, which load_context reads. The file is seen when it is whole: until "
          "then what was there stays.\n\n"
          "model: what the network is known by, for who loads the rows to compare. made_with: how "
          "they were made, for people, one line. length: that Model.load was given, for which keys "
          "are turned; 0: none, or not known. tokens: ids of the text, all of them [tokens]; "
          "None: not known. text_left, chat, system: how a prompt goes on (LoadedContext has "
          "them): "
          "what the text has behind the last token, whether it is in a question of the model's "
          "chat template, and the system message before it. progress: called with a Progress, "
          "stage \"save\", in bytes; what it "
          "raises, and Ctrl-C, ends the saving: there is then what was there, or, from the last "
          "report on, all of the file.\n\n"
          "Raises FileError (before anything is written where there is no room), and "
          "InvalidArgument for tokens of another number.")
      .def("__repr__", [](const Context& self) {
        return fmt::format("<Context of {} tokens, {} layers, {} rows, indices: {}>", self.tokens(),
                           self.shape().layers, self.dtype().name(),
                           fmt::join(self.indices(), ", "));
      });
}

}  // namespace topkv::python
