// The methods of an evaluation by name, its folder of answers, and what is made of them.
#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "bindings/src/handles.h"
#include "bindings/src/names.h"
#include "src/eval/report/score_files.h"
#include "src/eval/run/bytes_read.h"
#include "src/eval/run/eval_directory.h"
#include "src/eval/run/method.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

using Json = nlohmann::ordered_json;

/// JSON goes between the languages as text.
Json json_of(const std::string& text, const char* what) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    throw InvalidArgument(
        fmt::format("{} is '{}'; expected the text of a JSON object", what, text.substr(0, 60)));
  }
  return json;
}

Method method_of(const std::string& text, std::int64_t head_dim, std::int64_t layers,
                 std::int64_t window, std::int64_t sinks, std::int64_t dense_layers,
                 const std::string& select_by) {
  return parse_method(text, {head_dim,
                             layers,
                             {.select_by = parse_select_by(select_by),
                              .dense_layers = dense_layers,
                              .window = window,
                              .sinks = sinks}});
}

std::unique_ptr<EvalDirectory> directory_of(const std::filesystem::path& path,
                                            const std::string& configuration, bool fresh) {
  const Json settings = json_of(configuration, "configuration");
  for (const char* list : {"tasks", "lengths", "methods", "budgets"}) {
    if (settings.contains(list) && settings.at(list).is_array()) continue;
    throw InvalidArgument(fmt::format("configuration has no list '{}'; give it", list));
  }
  return std::make_unique<EvalDirectory>(path, settings, fresh);
}

bool has(const EvalDirectory& self, const std::string& task, std::int64_t length,
         std::int64_t sample, const std::string& method, std::optional<std::int64_t> budget) {
  EvalResult place;
  place.task = task;
  place.length = length;
  place.sample = sample;
  place.method = method;
  place.budget = budget;
  return self.has(place);
}

void append(EvalDirectory& self, const std::string& answer) {
  const Json json = json_of(answer, "answer");
  try {
    self.append(eval_result_from_json(json));
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format(
        "answer lacks a member, or one is of another type ({}); docs/reference/eval.md lists them",
        error.what()));
  }
}

std::optional<std::int64_t> read_of(const Context& context, const std::string& index,
                                    const std::string& tail, std::int64_t window,
                                    std::int64_t sinks, std::int64_t dense_layers, double rows) {
  return bytes_read(context,
                    {.index = index,
                     .tail = tail,
                     .dense_layers = dense_layers,
                     .window = window,
                     .sinks = sinks},
                    rows);
}

}  // namespace

void bind_eval_results(py::module_& module) {
  py::class_<Method>(module, "Method", "The way in which a session finds the rows that it attends.")
      .def_readonly("name", &Method::name, "The text that names the method.")
      .def_readonly("budgets", &Method::budgets,
                    "False: the method attends all rows, whatever the budget.")
      .def("indices", &Method::indices, "Indices and tails that a context must have.")
      .def(
          "options",
          [](const Method& self, std::int64_t budget) {
            const RetrievalOptions options = self.with(budget, 1);
            py::dict made;
            made["index"] = options.index;
            made["tail"] = options.tail;
            if (options.k.schedule == TopK::Schedule::linear_sum) {
              made["k"] = fmt::format("linear:{}", options.k.value);
            } else {
              made["k"] = options.k.value;
            }
            made["window"] = options.window;
            made["sinks"] = options.sinks;
            made["dense_layers"] = options.dense_layers;
            made["select_by"] = options.select_by == SelectBy::group ? "group" : "query_head";
            return made;
          },
          py::arg("budget"),
          "Options of a session with this budget of rows, by their names in Session.")
      .def("__repr__", [](const Method& self) { return fmt::format("<Method {}>", self.name); });

  module.def("split_methods", &split_methods, py::arg("methods"),
             "The texts of several methods with ';' between them.");
  module.def("parse_method", &method_of, py::arg("text"), py::kw_only(), py::arg("head_dim"),
             py::arg("layers"), py::arg("window") = 1024, py::arg("sinks") = 4,
             py::arg("dense_layers") = 0, py::arg("select_by") = "query_head",
             "Parses NAME[+TAIL][@PARAMETER,...] for a model. The other arguments are defaults for "
             "parameters that the text leaves out.");

  py::class_<Score>(module, "Score", "The mean over the samples of one task.")
      .def_readonly("task", &Score::task)
      .def_readonly("samples", &Score::samples)
      .def_readonly("mean", &Score::mean, "Percent; for repetition characters.")
      .def_property_readonly(
          "interval",
          [](const Score& self) -> py::object {
            if (!self.interval) return py::none();
            return py::make_tuple(self.interval->low, self.interval->high);
          },
          "The 95 % interval (low, high), or None.")
      .def("__repr__", [](const Score& self) {
        return fmt::format("<Score {:.2f} of {} samples of {}>", self.mean, self.samples,
                           self.task);
      });

  py::class_<ScoreRow>(module, "ScoreRow",
                       "The scores of one method with one budget at one length.")
      .def_readonly("length", &ScoreRow::length)
      .def_readonly("method", &ScoreRow::method)
      .def_readonly("budget", &ScoreRow::budget, "None: all rows.")
      .def_readonly("scores", &ScoreRow::scores,
                    "The score of each column; None: nothing was asked.")
      .def_readonly("rows_per_head", &ScoreRow::rows_per_head)
      .def_readonly("bytes_read", &ScoreRow::bytes_read, "Bytes read per token, or None.")
      .def_readonly("average", &ScoreRow::average, "The average in percent, or None.")
      .def("__repr__", [](const ScoreRow& self) {
        return fmt::format("<ScoreRow of {} at {} tokens>", self.method, self.length);
      });

  py::class_<ScoreTable>(module, "ScoreTable", "A row for each method, length and budget.")
      .def_readonly("columns", &ScoreTable::columns)
      .def_readonly("rows", &ScoreTable::rows)
      .def("__repr__", [](const ScoreTable& self) {
        return fmt::format("<ScoreTable of {} rows, {} columns>", self.rows.size(),
                           self.columns.size());
      });

  py::class_<EvalDirectory>(module, "Directory",
                            "The folder of an evaluation, as `topkv eval` writes it, locked while "
                            "this object lives. configuration: text of a JSON object with "
                            "\"model\", \"tasks\", \"lengths\", \"methods\", \"budgets\", "
                            "\"samples\". Raises FileError for a folder of another configuration, "
                            "unless fresh.")
      .def(py::init(&directory_of), py::arg("path"), py::arg("configuration"),
           py::arg("fresh") = false)
      .def_property_readonly("path",
                             [](const EvalDirectory& self) { return self.file("").parent_path(); })
      .def("__len__", [](const EvalDirectory& self) { return self.results().size(); })
      .def("has", &has, py::arg("task"), py::arg("length"), py::arg("sample"), py::arg("method"),
           py::arg("budget"), "Whether the folder has this answer.")
      .def("append", &append, py::arg("answer"),
           "Adds an answer, the text of a JSON object as in samples.jsonl. It is written when the "
           "call returns.")
      .def(
          "write_scores",
          [](const EvalDirectory& self, const std::string& title, const std::string& subtitle) {
            return write_scores(self, title, subtitle).table;
          },
          py::arg("title"), py::arg("subtitle"),
          "Writes summary.csv, scores.csv, scores.svg and report.html of all answers, and returns "
          "the table.")
      .def("__repr__", [](const EvalDirectory& self) {
        return fmt::format("<Directory of {} answers>", self.results().size());
      });

  module.def("bytes_read", &read_of, py::arg("context"), py::kw_only(), py::arg("index"),
             py::arg("tail"), py::arg("window"), py::arg("sinks"), py::arg("dense_layers"),
             py::arg("rows"),
             "The bytes of a context that a token's step reads, or None if the index does not "
             "report them. index, tail: a session's. rows: rows retrieved per token, over all "
             "layers and query heads.");
  module.def(
      "default_directory",
      [](const std::string& configuration) {
        return default_eval_directory(json_of(configuration, "configuration"));
      },
      py::arg("configuration"), "The default folder of an evaluation.");
}

}  // namespace topkv::python
