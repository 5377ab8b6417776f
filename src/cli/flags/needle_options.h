// The settings of a needle run: flags, their meaning, and the configuration written to run.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/eval/tasks/needle_grid.h"

namespace topkv::cli {

struct NeedleFlags {
  std::string lengths;
  std::string depths;
  std::string haystack;
  std::string style;
  CustomNeedle custom;
  bool ruler_length = false;
  bool separate = false;
  std::optional<std::int64_t> predict;  ///< not set: what the task needs
  RetrievalFlags retrieval;
  bool recall = false;
  PrefillFlags prefill;
  SamplingFlags sampling;
  ModelFlags model;
  std::string output;  ///< empty: default_eval_directory
  bool fresh = false;
  bool profile = false;
  bool json = false;
};

void visit_flags(NeedleFlags& flags, auto& visit) {
  visit("--ctx", flags.lengths);
  visit("--depths", flags.depths);
  visit("--haystack", flags.haystack);
  visit("--needle", flags.style);
  visit("--needle-text", flags.custom.text);
  visit("--question", flags.custom.question);
  visit("--answer", flags.custom.answer);
  visit("--ruler-length", flags.ruler_length);
  visit("--separate", flags.separate);
  visit("--predict", flags.predict);
  visit_flags(flags.retrieval, visit);
  visit("--kv-recall", flags.recall);
  visit_flags(flags.prefill, visit);
  visit_flags(flags.sampling, visit);
  visit_flags(flags.model, visit);
  visit("--output", flags.output);
  visit("--fresh", flags.fresh);
  visit("--profile", flags.profile);
  visit("--json", flags.json);
}

/// The flags understood.
struct NeedleOptions {
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<std::string> indices;   ///< specs, in the order given; at first none
  NeedleGrid grid;
};

/// Throws UsageError for flags that cannot be meant, whatever the model.
NeedleOptions make_options(const NeedleFlags& flags);

/// Everything that changes results or their timing, in one spelling.
Json configuration(NeedleFlags flags, const NeedleOptions& options, std::int64_t threads,
                   const std::string& device);

}  // namespace topkv::cli
