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

struct GridFlags {
  RetrievalFlags retrieval;  ///< what all share, and the indices
  std::vector<std::string> ks;
  std::vector<std::string> tails;  ///< empty: what an index has
  std::vector<std::optional<double>> masses;
  std::vector<std::optional<double>> errors;
  std::vector<std::optional<std::string>> guarantees;
};

void visit_flags(GridFlags& flags, auto& visit) {
  visit_flags(flags.retrieval, visit);
  visit("--kv-topk", flags.ks);
  visit("--kv-tail", flags.tails);
  visit("--kv-mass", flags.masses);
  visit("--kv-error", flags.errors);
  visit("--kv-guarantee", flags.guarantees);
}

/// Returns each point of the grid, with one index, once indices are named. Throws UsageError for a
/// point that is not for this model.
std::vector<RetrievalFlags> grid_points(GridFlags& flags, const ModelFlags& model,
                                        const ModelConfig& config);

/// Returns the context with the index and the tail of a point. Throws UsageError if the index
/// cannot be built, and Interrupted.
std::shared_ptr<const Context> with_retrieval(const std::shared_ptr<const Context>& context,
                                              const RetrievalFlags& point, const Model& model,
                                              ProgressBar& progress);

}  // namespace topkv::cli
