// The folder of an evaluation: a ResultDirectory of answers.
//
//   run.json        the full configuration
//   samples.jsonl   one JSON line per answer, appended as it is there
//   summary.csv, scores.csv, scores.svg, report.html   made from the answers at the end
//
// Tasks, lengths, methods, budgets and the number of samples are no part of the configuration that
// a folder belongs to: answers of more of them are added to those that are there.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "src/eval/run/eval_result.h"
#include "src/eval/run/result_directory.h"

namespace topkv {

/// One thread at a time.
class EvalDirectory {
 public:
  /// configuration: with "model", and the lists "tasks", "lengths", "methods" and "budgets" and the
  /// number "samples". Throws what ResultDirectory does.
  EvalDirectory(std::filesystem::path directory, const nlohmann::ordered_json& configuration,
                bool fresh);

  const std::vector<EvalResult>& results() const { return results_; }
  /// With what was there of the lists that may grow.
  const nlohmann::ordered_json& configuration() const { return directory_.configuration(); }
  /// Whether there is an answer in the place of `result`.
  bool has(const EvalResult& result) const { return places_.contains(place(result)); }
  /// Writes the answer before it returns. Throws FileError.
  void append(const EvalResult& result);

  std::filesystem::path file(const char* name) const { return directory_.file(name); }

 private:
  using Place = std::tuple<std::string, std::int64_t, std::int64_t, std::string, std::int64_t>;
  static Place place(const EvalResult& result);

  ResultDirectory directory_;
  std::vector<EvalResult> results_;
  std::set<Place> places_;
};

/// Where an evaluation goes that was not told: out/eval-MODEL-DIGEST.
std::filesystem::path default_eval_directory(const nlohmann::ordered_json& configuration);

}  // namespace topkv
