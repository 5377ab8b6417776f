// Results of a comparison of prefills as lines for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/eval/report/fidelity_lines.h"
#include "src/eval/run/prefill_fidelity.h"

namespace topkv {

/// "dense", "window 1024" or "sparse 1024 + 512 to 8192 keys, mass 0.98".
std::string way_text(const PrefillAttention& way);

/// An object for each way, dense first, each complete in itself; null for what a way does not have.
/// (For csv_lines.) run: its `prefill` is not read.
std::vector<nlohmann::ordered_json> prefill_json(std::span<const PrefillFidelity> ways,
                                                 const FidelityRun& run);

}  // namespace topkv
