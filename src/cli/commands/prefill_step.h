// A text that was read into a frozen context, with the index and the tail that the flags name.
#pragma once

#include <memory>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"

namespace topkv::cli {

struct Prefilled {
  std::shared_ptr<const Context> context;
  double seconds = 0;       ///< of the prefill, without its indices
  ForwardTimes times = {};  ///< with them
};

/// No tokens give an empty context. Throws what Model::prefill does, and Interrupted.
Prefilled prefill(const Model& model, const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                  const std::vector<Token>& tokens, ProgressBar& progress);

}  // namespace topkv::cli
