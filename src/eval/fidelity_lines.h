// Results of a fidelity measurement as lines for programs: JSON and CSV.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/eval/fidelity.h"

namespace topkv {

/// What all settings of a measurement share. Texts are UTF-8.
struct FidelityRun {
  std::int64_t context_tokens = 0;
  std::string haystack;
  std::string prefill;
  std::string weights;
  std::string device;
  std::string version;
};

/// "mass 0.95", "error 0.1", both, or nothing: the rules of which rows are enough.
std::string rule_text(const RetrievalOptions& options);

/// "codes:k=16,v=8, top 64, tail none", and the rules.
std::string setting_text(const Fidelity& setting);

/// An object per setting, each complete in itself; null for what is not known.
std::vector<nlohmann::ordered_json> fidelity_json(const FidelityReport& report,
                                                  const FidelityRun& run);

/// The same as RFC 4180 has it, below a heading line: all members but lists (layer_error). What is
/// not known is empty. lines: at least one.
std::string fidelity_csv(const std::vector<nlohmann::ordered_json>& lines);

}  // namespace topkv
