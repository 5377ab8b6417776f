// One choice of how rows are retrieved, as measurements name it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "topkv/session.h"

namespace topkv {

/// The index, or "indexer": RetrievalOptions::indexer_top is set.
std::string index_text(const RetrievalOptions& options);
/// "0.1,0.05": RetrievalOptions::guarantee, if it is set.
std::optional<std::string> guarantee_text(const RetrievalOptions& options);

/// "mass 0.95", "error 0.1", both, "guarantee 0.1,0.05", or nothing: the rules of which rows are
/// enough.
std::string rule_text(const RetrievalOptions& options);

/// The rules in a cell of a table: "-" if there is none.
std::string rule_cell(const RetrievalOptions& options);

/// "codes:k=16,v=8, top 64, tail none", and the rules. options: as a session has them; k: as given.
std::string setting_text(const RetrievalOptions& options, const std::string& k);

/// Members of a JSON object that say the same, one by one: index and kv_….
void add_setting(nlohmann::ordered_json& json, const RetrievalOptions& options,
                 const std::string& k);

}  // namespace topkv
