// The settings of an evaluation: flags, their meaning, and the configuration written to run.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/eval/run/eval_run.h"
#include "src/eval/tasks/tasks.h"

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

struct EvalFlags {
  ModelFlags model;
  RetrievalFlags retrieval;  ///< window, sinks, dense layers and who selects
  PrefillFlags prefill;
  std::string tasks = "ruler";
  std::string lengths = "4K,16K";
  std::string methods = "dense;codes";
  std::string budgets = "64,256";
  std::string samples;  ///< empty: 20, and all questions of qa
  std::string seed = "42";
  std::string essays;  ///< empty: generated prose
  std::vector<std::string> files;
  std::string questions;  ///< empty: none
  std::string output;     ///< empty: default_eval_directory
  bool fresh = false;
  bool json = false;
};

/// Registers all flags of the command.
void add_flags(CLI::App& command, EvalFlags& flags);

/// The flags understood, but for what needs a model.
struct EvalSettings {
  std::vector<std::string> tasks;
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<std::int64_t> budgets;  ///< ascending
  std::int64_t samples = 0;
  bool all_questions = false;
  std::uint64_t seed = 0;
  TaskSources sources;
};

/// Throws UsageError for flags that cannot be meant, whatever the model; FileError for files that
/// cannot be read.
EvalSettings make_settings(const EvalFlags& flags);

/// For this model. Throws UsageError.
std::vector<Method> make_methods(const EvalFlags& flags, const ModelConfig& config);

/// Everything that changes results or their timing, in one spelling.
Json configuration(const EvalFlags& flags, const EvalSettings& settings,
                   const std::vector<Method>& methods, std::int64_t threads,
                   const std::string& device);

}  // namespace topkv::cli
