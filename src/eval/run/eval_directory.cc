#include "src/eval/run/eval_directory.h"

#include <algorithm>
#include <utility>

#include "src/eval/run/needle_cells.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json with_more(const Json& there, const Json& here, bool sorted) {
  auto all = there.get<std::vector<T>>();
  for (const T& one : here.get<std::vector<T>>()) {
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  }
  if (sorted) std::ranges::sort(all);
  return all;
}

Json merged_samples(const Json& there, const Json& here) {
  Json both = here;
  for (const char* list : {"tasks", "methods"}) {
    both[list] = with_more<std::string>(there.at(list), here.at(list), false);
  }
  for (const char* list : {"lengths", "budgets"}) {
    both[list] = with_more<std::int64_t>(there.at(list), here.at(list), true);
  }
  both["samples"] =
      std::max(there.at("samples").get<std::int64_t>(), here.at("samples").get<std::int64_t>());
  return both;
}

Json merged_cells(const Json& there, const Json& here) {
  Json both = here;
  if (both.contains("lengths")) {
    both["lengths"] = with_more<std::int64_t>(there.at("lengths"), here.at("lengths"), true);
  }
  if (both.contains("kv_index")) {
    auto specs = there.at("kv_index").get<std::vector<std::string>>();
    for (const auto& spec : here.at("kv_index").get<std::vector<std::string>>()) {
      if (std::ranges::find(specs, spelled_in(specs, spec)) == specs.end()) specs.push_back(spec);
    }
    both["kv_index"] = specs;
  }
  return both;
}

std::string whole_spec(const std::string& spec) {
  const IndexSpec index(spec);
  index.check_index();
  return index.text();
}

}  // namespace

const ResultFormat& samples_format() {
  static const ResultFormat format = {
      .layout = {.lines = "samples.jsonl",
                 .line_is = "an answer",
                 .made = {"summary.csv", "scores.csv", "scores.svg", "report.html"},
                 .check = [](const Json& line) { eval_result_from_json(line); },
                 .merge = merged_samples,
                 .growing = {"tasks", "lengths", "methods", "budgets", "samples"}},
      .prefix = "eval",
      .write = [](const EvalResult& result) { return to_json(result); },
      .read = eval_result_from_json};
  return format;
}

const ResultFormat& cells_format() {
  static const ResultFormat format = {
      .layout = {.lines = "cells.jsonl",
                 .line_is = "a cell",
                 .made = {"summary.csv", "heatmap.svg", "report.html"},
                 .check = [](const Json& line) { result_from_cell(line); },
                 .merge = merged_cells,
                 .growing = {"lengths", "kv_index"}},
      .prefix = "needle",
      .write = to_cell,
      .read = result_from_cell};
  return format;
}

std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec) {
  const auto same = std::ranges::find_if(specs, [&](const std::string& other) {
    return other == spec || whole_spec(other) == whole_spec(spec);
  });
  return same == specs.end() ? spec : *same;
}

EvalDirectory::EvalDirectory(std::filesystem::path directory, const Json& configuration, bool fresh,
                             const ResultFormat& format)
    : format_(format), directory_(std::move(directory), configuration, fresh, format.layout) {
  for (const Json& line : directory_.lines()) {
    results_.push_back(format.read(line));
    places_.insert(place(results_.back()));
  }
}

EvalDirectory::Place EvalDirectory::place(const EvalResult& result) {
  return {result.task,  result.length, result.sample,
          result.depth, result.method, result.budget.value_or(-1)};
}

void EvalDirectory::append(const EvalResult& result) {
  directory_.append(format_.write(result));
  results_.push_back(result);
  places_.insert(place(result));
}

std::filesystem::path default_eval_directory(const Json& configuration,
                                             const ResultFormat& format) {
  return default_result_directory(format.prefix, configuration, format.layout.growing);
}

}  // namespace topkv
