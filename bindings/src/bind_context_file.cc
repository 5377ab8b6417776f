#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "topkv/context_file.h"

namespace topkv::python {
namespace {

LoadedContext load(const std::filesystem::path& path, bool mapped, std::int64_t memory_budget,
                   std::optional<std::vector<std::string>> indices, const py::object& device,
                   const py::object& progress) {
  const ContextLoadOptions options = {.mapped = mapped,
                                      .memory_budget = memory_budget,
                                      .indices = std::move(indices),
                                      .device = device_of(device),
                                      .progress = progress_of(progress)};
  const GilReleased released;
  return load_context(path, options);
}

void verify(const std::filesystem::path& path, const py::object& progress) {
  const ProgressFn report = progress_of(progress);
  const GilReleased released;
  verify_context(path, report);
}

/// None of a file that does not say.
py::object tokens_in(const LoadedContext& loaded) {
  const std::vector<Token>& tokens = loaded.origin.tokens;
  if (tokens.empty()) return py::none();
  return to_numpy(tokens.data(), std::ssize(tokens));
}

/// A text of a file as Python writes it: whatever it holds, one line.
std::string quoted(const std::string& text) {
  return py::cast<std::string>(py::repr(py::str(text)));
}

}  // namespace

void bind_context_file(py::module_& module) {
  py::class_<LoadedContext>(module, "LoadedContext",
                            "A context loaded from a file, and the file's description of its rows.",
                            py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("context",
                             [](const LoadedContext& self) { return unconst(self.context); })
      .def_property_readonly(
          "model", [](const LoadedContext& self) { return self.origin.model; },
          "The saver's name of the network that made the rows; \"\": none.")
      .def_property_readonly(
          "made_with", [](const LoadedContext& self) { return self.origin.made_with; },
          "How the rows were made, for people.")
      .def_property_readonly(
          "length", [](const LoadedContext& self) { return self.origin.length; },
          "The length that Model.load was given, for which keys are rotated; 0: none, or unknown.")
      .def_property_readonly("tokens", &tokens_in,
                             "A copy of the text's ids, int32 [tokens]; None: not in the file.")
      .def_property_readonly(
          "text_left", [](const LoadedContext& self) { return self.origin.end.text_left; },
          "The text after the last token; a prompt begins with it.")
      .def_property_readonly(
          "chat", [](const LoadedContext& self) { return self.origin.end.chat; },
          "Whether the text is in a question of the model's chat template.")
      .def_property_readonly(
          "system", [](const LoadedContext& self) { return self.origin.end.system; },
          "The system message before that question; \"\": none.")
      .def_property_readonly(
          "application_data",
          [](const LoadedContext& self) {
            const std::vector<std::byte>& data = self.origin.application_data;
            return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
          },
          "A copy of the bytes that Context.save was given as application_data; b\"\": none.")
      .def("__repr__", [](const LoadedContext& self) {
        return fmt::format("<LoadedContext of {} tokens, model {}, {} token ids>",
                           self.context->tokens(), quoted(self.origin.model),
                           self.origin.tokens.empty() ? "without" : "with");
      });

  py::class_<ContextFileInfo>(module, "ContextFileInfo", "The description in a context file.")
      .def_readonly("version", &ContextFileInfo::version, "Version of the format.")
      .def_readonly("writer", &ContextFileInfo::writer, "The topkv that wrote the file.")
      .def_readonly("shape", &ContextFileInfo::shape)
      .def_property_readonly("dtype", [](const ContextFileInfo& self) { return self.dtype.name(); })
      .def_readonly("tokens", &ContextFileInfo::tokens)
      .def_property_readonly(
          "tokens_before",
          [](const ContextFileInfo& self) {
            return self.tokens_before < 0 ? py::object(py::none())
                                          : py::object(py::int_(self.tokens_before));
          },
          "Tokens of the session's context, if the rows are a session's own; None for rows of a "
          "text.")
      .def_readonly("indices", &ContextFileInfo::indices, "Specs, as in Context.indices().")
      .def_readonly(
          "unknown_indices", &ContextFileInfo::unknown_indices,
          "Specs that this topkv does not know, as a later one may write them, and specs of "
          "indices that use the data of such an index. If there are some, load_context needs "
          "`indices`.")
      .def_readonly("has_queries", &ContextFileInfo::has_queries)
      .def_readonly("model", &ContextFileInfo::model)
      .def_readonly("made_with", &ContextFileInfo::made_with)
      .def_readonly("length", &ContextFileInfo::length, "As LoadedContext.length.")
      .def_readonly("has_token_ids", &ContextFileInfo::has_token_ids)
      .def_readonly("file_bytes", &ContextFileInfo::file_bytes)
      .def_readonly("rows_bytes", &ContextFileInfo::rows_bytes, "Bytes of the rows in the file.")
      .def_readonly("index_bytes", &ContextFileInfo::index_bytes)
      .def_readonly("queries_bytes", &ContextFileInfo::queries_bytes)
      .def_readonly("states_bytes", &ContextFileInfo::states_bytes)
      .def_readonly("application_bytes", &ContextFileInfo::application_bytes,
                    "Bytes of LoadedContext.application_data.")
      .def("__repr__", [](const ContextFileInfo& self) {
        return fmt::format(
            "ContextFileInfo(tokens={}, shape={}, dtype='{}', indices={}, unknown_indices={}, "
            "has_queries={}, has_token_ids={}, model={}, made_with={}, length={}, file_bytes={}, "
            "rows_bytes={}, index_bytes={}, queries_bytes={}, states_bytes={}, "
            "application_bytes={}, version={}, "
            "writer={})",
            self.tokens, py::cast<std::string>(py::repr(py::cast(self.shape))), self.dtype.name(),
            py::cast<std::string>(py::repr(py::cast(self.indices))),
            py::cast<std::string>(py::repr(py::cast(self.unknown_indices))),
            self.has_queries ? "True" : "False", self.has_token_ids ? "True" : "False",
            quoted(self.model), quoted(self.made_with), self.length, self.file_bytes,
            self.rows_bytes, self.index_bytes, self.queries_bytes, self.states_bytes,
            self.application_bytes, self.version, quoted(self.writer));
      });

  module.def(
      "load_context", &load, py::arg("path"), py::kw_only(), py::arg("mapped") = false,
      py::arg("memory_budget") = 0, py::arg("indices") = py::none(), py::arg("device") = py::none(),
      py::arg("progress") = py::none(),
      "Loads the context that Context.save wrote, to the bit: rows, indices and tails. None is "
      "built again.\n\n"
      "mapped: rows stay in the file and are read in place, as they are needed, so they may exceed "
      "the memory. Only verify_context checks their checksums. The file must not be changed while "
      "the context lives: a page that is cut off ends the process.\n\n"
      "memory_budget: bytes that rows may take; 0: the free memory.\n\n"
      "indices: specs of the indices to load, if the file has them; exact is always loaded. No "
      "other index is read. None: all; an unknown one is refused.\n\n"
      "device: a CUDA device; rows in memory are page-locked for its sessions.\n\n"
      "progress: called with a Progress, stage \"load\", in bytes. An exception in it, and Ctrl-C, "
      "end the loading.\n\n"
      "Raises FileError, which names the file and the damaged part, Unsupported for a file or an "
      "index of a later topkv, and OutOfMemory before rows are read that do not fit.");
  module.def("context_file_info", &context_file_info, WithoutGil(), py::arg("path"),
             "Reads the description from the beginning of a context file. Raises FileError, and "
             "Unsupported for a file of a later topkv.");
  module.def("verify_context", &verify, py::arg("path"), py::arg("progress") = py::none(),
             "Reads the whole file, with little memory. Raises FileError, which names the first "
             "damaged part, and Unsupported for a file of a later topkv. progress: as in "
             "load_context, stage \"verify\".");
}

}  // namespace topkv::python
