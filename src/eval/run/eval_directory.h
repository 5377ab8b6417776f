// The folder of an evaluation: a ResultDirectory of answers.
//
//   file                          `topkv eval`           `topkv needle`
//   the full configuration        run.json               run.json
//   a JSON line for each answer   samples.jsonl          cells.jsonl
//   made at the end               summary.csv,           summary.csv,
//                                 scores.csv,            heatmap.svg,
//                                 scores.svg,            report.html
//                                 report.html
//   may grow                      tasks, lengths,        lengths,
//                                 methods, budgets,      kv_index
//                                 samples
//
// A folder belongs to one configuration. Members that may grow are no part of it: answers of more
// of them are added to the answers in the folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "src/eval/run/eval_result.h"
#include "src/eval/run/result_directory.h"

namespace topkv {

/// How a folder keeps its answers.
struct ResultFormat {
  ResultLayout layout;
  std::string prefix;  ///< of default directories
  nlohmann::ordered_json (*write)(const EvalResult& result);
  /// Throws nlohmann::json::exception.
  EvalResult (*read)(const nlohmann::ordered_json& line);
};

/// The format of `topkv eval`. A configuration has "model", the lists "tasks", "lengths", "methods"
/// and "budgets", and the number "samples".
const ResultFormat& samples_format();
/// The format of `topkv needle`. A configuration has "model", and the lists "lengths" and
/// "kv_index". An index in the folder keeps its spelling when it is given in another one.
const ResultFormat& cells_format();

/// One thread at a time.
class EvalDirectory {
 public:
  /// configuration: of the format. Throws what ResultDirectory does.
  EvalDirectory(std::filesystem::path directory, const nlohmann::ordered_json& configuration,
                bool fresh, const ResultFormat& format = samples_format());

  const std::vector<EvalResult>& results() const { return results_; }
  /// The configuration given, with the members that may grow of the folder's.
  const nlohmann::ordered_json& configuration() const { return directory_.configuration(); }
  /// Whether there is an answer in the place of `result`: its task, length, sample, depth, method
  /// and budget.
  bool has(const EvalResult& result) const { return places_.contains(place(result)); }
  /// Writes the answer before it returns. Throws FileError.
  void append(const EvalResult& result);

  std::filesystem::path file(const char* name) const { return directory_.file(name); }

 private:
  using Place = std::tuple<std::string, std::int64_t, std::int64_t, std::optional<double>,
                           std::string, std::int64_t>;
  static Place place(const EvalResult& result);

  const ResultFormat& format_;
  ResultDirectory directory_;
  std::vector<EvalResult> results_;
  std::set<Place> places_;
};

/// The folder of a run without a folder of its own: out/PREFIX-MODEL-DIGEST, one for each
/// configuration.
std::filesystem::path default_eval_directory(const nlohmann::ordered_json& configuration,
                                             const ResultFormat& format = samples_format());

/// The spelling under which the index `spec` is among `specs`, or spec itself. Throws
/// InvalidArgument for an unknown index.
std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec);

}  // namespace topkv
