// Flags of commands that compare several ways to retrieve: each index with each tail, count of rows
// and rule is one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"

namespace topkv::cli {

struct ChoiceFlags {
  RetrievalFlags retrieval;  ///< what all share, and the indices
  std::vector<std::string> ks = {"256"};
  std::vector<std::string> tails = {""};
  std::vector<std::string> masses = {"none"};
  std::vector<std::string> errors = {"none"};
};

void add_flags(CLI::App& command, ChoiceFlags& flags);

/// Each choice, with one index, once that is named. Throws UsageError for what is wrong with one
/// for this model.
std::vector<RetrievalFlags> choices(ChoiceFlags& flags, const ModelFlags& model,
                                    const ModelConfig& config);

/// The context with the index and the tail of a choice. Throws UsageError where the index cannot be
/// built, and Interrupted.
std::shared_ptr<const Context> with_choice(const std::shared_ptr<const Context>& context,
                                           const RetrievalFlags& choice, const Model& model,
                                           ProgressBar& progress);

}  // namespace topkv::cli
