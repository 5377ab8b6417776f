// What commands that answer share: how their answers are chosen, end and are shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "topkv/generate.h"

namespace topkv::cli {

struct AnswerFlags {
  std::int64_t predict = 0;  ///< the most tokens
  SamplingFlags sampling;
  // Not set: the model's own.
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::optional<std::int64_t> logprobs;  ///< not set: none
  std::vector<std::string> stop;
  std::string json_schema;  ///< a file; empty: none
  DraftFlags drafts;
  bool quiet = false;
  bool json = false;
  bool cite = false;  ///< names the places that the answer attended
};

void visit_flags(AnswerFlags& flags, auto& visit) {
  visit("--predict", flags.predict);
  visit_flags(flags.sampling, visit);
  visit("--min-p", flags.min_p);
  visit("--repetition-penalty", flags.repetition_penalty);
  visit("--frequency-penalty", flags.frequency_penalty);
  visit("--presence-penalty", flags.presence_penalty);
  visit("--logprobs", flags.logprobs);
  visit("--stop", flags.stop);
  visit("--json-schema", flags.json_schema);
  visit_flags(flags.drafts, visit);
  visit("--quiet", flags.quiet);
  visit("--json", flags.json);
  visit("--cite", flags.cite);
}

/// Throws UsageError for what is wrong with the flags whatever the model.
void check_flags(const AnswerFlags& flags);

/// own: the model's sampling, for flags that are not set.
GenerateOptions generate_options(const AnswerFlags& flags, const SamplingOptions& own);

/// Whether the model has a say in how it is sampled.
bool follows_model(const AnswerFlags& flags);

}  // namespace topkv::cli
