// Flags of commands that compare several ways to retrieve: each index with each tail, count of rows
// and rule is one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"

namespace topkv::cli {

struct ChoiceFlags {
  RetrievalFlags retrieval;  ///< what all share, and the indices
  std::vector<std::string> ks;
  std::vector<std::string> tails;  ///< empty: what an index has
  std::vector<std::optional<double>> masses;
  std::vector<std::optional<double>> errors;
};

void visit_flags(ChoiceFlags& flags, auto& visit) {
  visit_flags(flags.retrieval, visit);
  visit("--kv-topk", flags.ks);
  visit("--kv-tail", flags.tails);
  visit("--kv-mass", flags.masses);
  visit("--kv-error", flags.errors);
}

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
