// Results of a fidelity measurement as lines for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/eval/run/fidelity.h"
#include "src/eval/run/retrieval_setting.h"

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

/// setting_text of its options, and how its rows are stored where that is not bf16.
std::string setting_text(const Fidelity& setting);

/// An object per setting, each complete in itself; null for what is not known. (For csv_lines.)
std::vector<nlohmann::ordered_json> fidelity_json(const FidelityReport& report,
                                                  const FidelityRun& run);

}  // namespace topkv
