// `topkv fidelity` with several prefills: how near each is to a dense one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/eval/report/fidelity_lines.h"
#include "src/eval/run/fidelity_text.h"

namespace topkv::cli {

/// The prefills that a command compares: each mode, in sparse mode with each number of keys and
/// each mass.
struct ComparedPrefills {
  std::vector<std::string> modes;
  std::vector<std::int64_t> keys;
  std::vector<std::optional<double>> masses;

  /// Returns whether there is more than one.
  bool several() const { return modes.size() > 1 || keys.size() > 1 || masses.size() > 1; }
};

void visit_flags(ComparedPrefills& flags, auto& visit) {
  visit("--prefill", flags.modes);
  visit("--prefill-keys", flags.keys);
  visit("--prefill-mass", flags.masses);
}

/// Returns each prefill but the dense one, which all are compared with. `shared` says what they
/// have in common. Throws UsageError for a mode, a number or a mass that is given twice.
std::vector<PrefillAttention> ways_of(const ComparedPrefills& compared, const PrefillFlags& shared,
                                      const RetrievalFlags& retrieval);

/// Returns the ways in which a model reads a text of `tokens` tokens now: without
/// Prefill::automatic, and each once, though several of `given` may become the same one or the
/// dense one. Notes each that is left out.
std::vector<PrefillAttention> resolved_ways(const Model& model,
                                            std::span<const PrefillAttention> given,
                                            const PrefillOptions& options, std::int64_t tokens,
                                            ProgressBar& progress);

/// Compares them over a text, and prints a table or lines of JSON. Returns the lines.
std::vector<Json> compare_prefills(const Model& model, const FidelityText& text,
                                   std::span<const PrefillAttention> ways,
                                   const PrefillOptions& options, const FidelityRun& run, bool json,
                                   ProgressBar& progress);

}  // namespace topkv::cli
