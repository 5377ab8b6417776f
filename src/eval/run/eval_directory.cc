#include "src/eval/run/eval_directory.h"

#include <algorithm>
#include <utility>

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> growing = {"tasks", "lengths", "methods", "budgets", "samples"};

template <class T>
Json with_more(const Json& there, const Json& here, bool sorted) {
  auto all = there.get<std::vector<T>>();
  for (const T& one : here.get<std::vector<T>>()) {
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  }
  if (sorted) std::ranges::sort(all);
  return all;
}

Json merged(const Json& there, const Json& here) {
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

ResultLayout layout() {
  return {.lines = "samples.jsonl",
          .line_is = "an answer",
          .made = {"summary.csv", "scores.csv", "scores.svg", "report.html"},
          .check = [](const Json& line) { eval_result_from_json(line); },
          .merge = merged,
          .growing = growing};
}

}  // namespace

EvalDirectory::EvalDirectory(std::filesystem::path directory, const Json& configuration, bool fresh)
    : directory_(std::move(directory), configuration, fresh, layout()) {
  for (const Json& line : directory_.lines()) {
    results_.push_back(eval_result_from_json(line));
    places_.insert(place(results_.back()));
  }
}

EvalDirectory::Place EvalDirectory::place(const EvalResult& result) {
  return {result.task, result.length, result.sample, result.method, result.budget.value_or(-1)};
}

void EvalDirectory::append(const EvalResult& result) {
  directory_.append(to_json(result));
  results_.push_back(result);
  places_.insert(place(result));
}

std::filesystem::path default_eval_directory(const Json& configuration) {
  return default_result_directory("eval", configuration, growing);
}

}  // namespace topkv
