// The settings of a needle run: flags, their meaning, and the configuration written to run.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/eval/tasks/needle_grid.h"

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

struct NeedleFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  SamplingFlags sampling;
  std::string lengths = "128K";
  std::string depths = "10";
  std::string haystack = "generated";
  std::string style = "number";
  CustomNeedle custom;
  bool ruler_length = false;
  bool separate = false;
  bool recall = false;
  bool profile = false;
  bool fresh = false;
  bool json = false;
  std::string output;  ///< empty: default_eval_directory
};

/// Registers all flags of the command.
void add_flags(CLI::App& command, NeedleFlags& flags);

/// The flags understood.
struct NeedlePlan {
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<std::string> indices;   ///< specs, in the order given; at first none
  NeedleGrid grid;
};

/// Throws UsageError for flags that cannot be meant, whatever the model.
NeedlePlan make_plan(const NeedleFlags& flags);

/// Everything that changes results or their timing, in one spelling.
Json configuration(const NeedleFlags& flags, const NeedlePlan& plan, std::int64_t threads,
                   const std::string& device);

}  // namespace topkv::cli
