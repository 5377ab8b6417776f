// The tasks of an evaluation: samples for anyone's tokenizer, and what answers are worth.
#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <string_view>

#include "bindings/src/handles.h"
#include "src/eval/tasks/tasks.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

/// The callable as tasks call it, which they do with the GIL held.
EncodeFn encode_of(const py::function& callable) {
  return [callable](std::string_view text) {
    return tokens_of(callable(py::str(text.data(), text.size())), "what encode returned");
  };
}

std::vector<EvalTask> tasks_of(const std::vector<std::string>& names, const py::function& encode,
                               const py::object& beginning, const std::string& essays,
                               const std::vector<std::filesystem::path>& files,
                               const std::filesystem::path& questions) {
  for (const std::string& name : names) {
    if (parse_tasks(name) == std::vector<std::string>{name}) continue;
    throw InvalidArgument(
        fmt::format("'{}' is several tasks; give those that parse_tasks has for it", name));
  }
  return make_eval_tasks(names, {encode_of(encode), tokens_of(beginning, "beginning")},
                         {essays, files, questions});
}

EvalSample sample_of(const EvalTask& task, std::int64_t length, std::int64_t number,
                     std::uint64_t seed) {
  if (number < 0 || (task.most >= 0 && number >= task.most)) {
    throw InvalidArgument(
        fmt::format("sample {} of task {}, which has {}", number, task.name,
                    task.most < 0 ? "those from 0 on" : fmt::format("{}, from 0", task.most)));
  }
  return task.make({length, sample_seed(seed, task, length, number), number});
}

void check_references(const std::vector<std::string>& references) {
  if (references.empty()) {
    throw InvalidArgument("references is empty; give at least one to score an answer");
  }
}

}  // namespace

void bind_eval_tasks(py::module_& module) {
  py::class_<EvalSample>(
      module, "Sample",
      "One text and a question about it. Text, question and answer together have at most the "
      "requested length in tokens.")
      .def_property_readonly(
          "context",
          [](const EvalSample& self) {
            return to_numpy(self.context.data(), std::ssize(self.context));
          },
          "The text's tokens, including the beginning.")
      .def_readonly("question", &EvalSample::question)
      .def_readonly("references", &EvalSample::references,
                    "Expected answers; empty: answers are kept and not scored.")
      .def_readonly("predict", &EvalSample::predict, "Tokens to generate.")
      .def_readonly("one_line", &EvalSample::one_line, "Whether the answer ends with its line.")
      .def("__repr__", [](const EvalSample& self) {
        return fmt::format("<Sample of {} tokens>", self.context.size());
      });

  py::class_<EvalTask>(module, "Task", "A task, which makes samples and scores answers to them.")
      .def_readonly("name", &EvalTask::name)
      .def_readonly("haystack", &EvalTask::haystack,
                    "The kind of text that the answer is hidden in.")
      .def_readonly("steps", &EvalTask::steps, "Whether the question is fed token by token.")
      .def_readonly("f1", &EvalTask::f1, "Whether answers also get SQuAD's F1.")
      .def_readonly("most", &EvalTask::most, "The number of samples; -1: any number.")
      .def("sample", &sample_of, py::arg("length"), py::arg("number"), py::arg("seed"),
           "Returns sample `number` of `length` tokens for a run with this seed, the sample that "
           "`topkv eval` asks. Raises InvalidArgument if the length is too short.")
      .def(
          "score",
          [](const EvalTask& self, const std::string& answer,
             const std::vector<std::string>& references) {
            check_references(references);
            return score_of(self.scoring, answer, references);
          },
          py::arg("answer"), py::arg("references"),
          "The score, between 0 and 1; for repetition a count of characters.")
      .def("__repr__", [](const EvalTask& self) { return fmt::format("<Task {}>", self.name); });

  module.def("parse_tasks", &parse_tasks, py::arg("names"),
             "The tasks of a list such as \"ruler,passkey\".");
  module.def("make_tasks", &tasks_of, py::arg("names"), py::arg("encode"), py::arg("beginning"),
             py::arg("essays") = "", py::arg("files") = py::tuple(), py::arg("questions") = "",
             "The tasks of these names, for a tokenizer. encode: called with a text, returns its "
             "tokens without special ones. beginning: the tokens that every context begins with. "
             "essays: a folder; \"\": generated prose. files, questions: for qa.");
  module.def(
      "squad_f1",
      [](const std::string& answer, const std::vector<std::string>& references) {
        check_references(references);
        return squad_f1(answer, references);
      },
      py::arg("answer"), py::arg("references"), "SQuAD's F1 of the common words.");
}

}  // namespace topkv::python
