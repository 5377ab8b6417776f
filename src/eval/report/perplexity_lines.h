// Results of a measurement of perplexity as lines for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/eval/run/perplexity.h"

namespace topkv {

/// What all settings of a measurement share. Texts are UTF-8.
struct PerplexityFacts {
  std::int64_t piece_tokens = 0;
  std::string kv_dtype;
  std::string prefill;
  std::string weights;
  std::string device;
  std::string version;
};

/// An object of dense attention, then one per setting, each complete in itself; null for what is
/// not known and, of dense attention, for what is a setting's. (For csv_lines.)
std::vector<nlohmann::ordered_json> perplexity_json(const PerplexityReport& report,
                                                    const PerplexityFacts& facts);

/// CSV: a line for each token scored: its piece, its place in that, its id, and its nats with dense
/// attention and with each setting. ids: of all pieces behind each other, as the nats are.
std::string token_csv(const PerplexityReport& report, std::int64_t piece_tokens,
                      std::span<const Token> ids);

}  // namespace topkv
