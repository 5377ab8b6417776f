// What commands that answer share: how their answers are chosen, end and are shown.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "topkv/generate.h"

namespace topkv::cli {

struct AnswerFlags {
  // Empty: the model's own.
  std::string min_p;
  std::string repetition_penalty;
  // Empty: none.
  std::string frequency_penalty;
  std::string presence_penalty;
  std::string logprobs;
  std::vector<std::string> stop;
  bool quiet = false;
  bool json = false;
};

void add_flags(CLI::App& command, AnswerFlags& flags);
/// Throws UsageError for what is wrong with the flags whatever the model.
void check_flags(const AnswerFlags& flags);

/// For answers of at most so many tokens. own: the model's sampling, for flags that are empty.
GenerateOptions generate_options(const SamplingFlags& sampling, const AnswerFlags& answers,
                                 const SamplingOptions& own, std::int64_t max_tokens);

/// Whether the model has a say in how it is sampled.
bool follows_model(const SamplingFlags& sampling, const AnswerFlags& answers);

}  // namespace topkv::cli
