// The flags of `topkv bench`, and what they ask for.
#pragma once

#include <cstdint>
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
  std::string context;
  std::string layers;  ///< empty: all
  ModelFlags model;    ///< without its directory
  RetrievalFlags retrieval;
  std::vector<std::string> ks = {"64"};
  std::vector<std::string> sessions = {"1"};
  std::string tokens = "16";
  std::string after = "4";
  std::vector<std::string> modes;  ///< of prefill; empty: both
  std::string prefill_window = "1024";
  std::string chunk = "auto";
  std::string at;      ///< prefill: instead of context
  std::string memory;  ///< empty: what the machine has free
  std::string seed = "42";
  bool profile = false;
  bool json = false;
};

/// Registers them.
void add_flags(CLI::App& command, BenchFlags& flags);

/// The flags, checked and in numbers.
struct BenchPlan {
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
BenchPlan bench_plan(BenchFlags flags, const CLI::App& command);

}  // namespace topkv::cli
