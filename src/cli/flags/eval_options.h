// The settings of an evaluation: flags, their meaning, and the configuration written to run.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/eval/run/eval_run.h"
#include "src/eval/tasks/tasks.h"

namespace topkv::cli {

struct EvalFlags {
  std::string tasks;
  std::string lengths;
  std::string methods;
  std::string budgets;
  std::optional<std::int64_t> samples;  ///< not set: 20, and all questions of qa
  std::uint64_t seed = 0;
  std::string essays;  ///< empty: generated prose
  std::vector<std::string> files;
  std::string questions;     ///< empty: none
  RetrievalFlags retrieval;  ///< window, sinks, dense layers and who selects
  PrefillFlags prefill;
  ModelFlags model;
  std::string output;  ///< empty: default_eval_directory
  bool fresh = false;
  bool json = false;
};

void visit_flags(EvalFlags& flags, auto& visit) {
  visit("--tasks", flags.tasks);
  visit("--lengths", flags.lengths);
  visit("--methods", flags.methods);
  visit("--budgets", flags.budgets);
  visit("--samples", flags.samples);
  visit("--seed", flags.seed);
  visit("--essays", flags.essays);
  visit("--file", flags.files);
  visit("--questions", flags.questions);
  visit_flags(flags.retrieval, visit);
  visit_flags(flags.prefill, visit);
  visit_flags(flags.model, visit);
  visit("--output", flags.output);
  visit("--fresh", flags.fresh);
  visit("--json", flags.json);
}

/// The flags understood, but for what needs a model.
struct EvalOptions {
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
EvalOptions make_options(const EvalFlags& flags);

/// For this model. Throws UsageError.
std::vector<Method> make_methods(const EvalFlags& flags, const ModelConfig& config);

/// Everything that changes results or their timing, in one spelling.
Json configuration(EvalFlags flags, const EvalOptions& options, const std::vector<Method>& methods,
                   std::int64_t threads, const std::string& device);

}  // namespace topkv::cli
