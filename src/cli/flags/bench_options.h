// The flags of `topkv bench`, and what they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

struct BenchFlags {
  std::string what;  ///< "decode" or "prefill"
  std::string shape;
  std::optional<std::int64_t> context;  ///< tokens
  std::optional<std::int64_t> layers;   ///< not set: all
  ModelFlags model;                     ///< without its directory
  RetrievalFlags retrieval;
  std::vector<std::string> ks;
  std::vector<std::int64_t> sessions;
  std::int64_t tokens = 0;
  std::int64_t after = 0;
  std::vector<std::string> modes;  ///< of prefill; empty: both
  PrefillFlags prefill;
  std::optional<std::int64_t> at;  ///< prefill: instead of context
  std::uint64_t seed = 0;
  bool profile = false;
  bool json = false;
};

void visit_flags(BenchFlags& flags, auto& visit) {
  visit("--shape", flags.shape);
  visit("--ctx", flags.context);
  visit("--layers", flags.layers);
  visit_flags(flags.model, visit);
  visit_flags(flags.retrieval, visit);
  visit("--kv-topk", flags.ks);
  visit("--sessions", flags.sessions);
  visit("--tokens", flags.tokens);
  visit("--after", flags.after);
  visit_flags(flags.prefill, visit);
  visit("--prefill", flags.modes);
  visit("--at", flags.at);
  visit("--seed", flags.seed);
  visit("--profile", flags.profile);
  visit("--json", flags.json);
}

/// Has the command read them.
void bind_flags(CLI::App& command, BenchFlags& flags);

/// The flags, checked and in numbers.
struct BenchOptions {
  std::string name;                         ///< the shape's, as given
  AttentionShape shape;                     ///< of the layers measured
  std::int64_t all_layers = 0;              ///< that the shape has
  std::int64_t context = 0;                 ///< tokens
  std::int64_t tokens = 0;                  ///< decode: steps timed
  std::int64_t after = 0;                   ///< decode: steps before these
  std::vector<RetrievalOptions> rows;       ///< decode: a row of the table each
  std::vector<std::string> ks;              ///< decode: of each row, as given
  std::vector<std::int64_t> sessions;       ///< decode: of each row, stepped together
  std::vector<PrefillAttention> attention;  ///< prefill: a row of the table each
  std::int64_t chunk = 0;                   ///< prefill; 0: what suits the device
  bool last_chunk = false;                  ///< prefill: time that one only
  std::int64_t memory_budget = 0;           ///< bytes for the rows; 0: what the machine has free
  std::uint64_t seed = 0;
};

/// Throws UsageError, or what ModelConfig::load throws for a shape's config.json.
BenchOptions make_options(BenchFlags flags, const CLI::App& command);

}  // namespace topkv::cli
