// Settings that several commands write to run.json, each in one spelling.
#pragma once

#include <string>

#include "src/cli/flags/options.h"

namespace topkv::cli {

/// The path as it is from anywhere, fit for JSON.
std::string absolute_path(const std::string& path);

/// Window, sinks, who selects and dense layers.
void add_settings(Json& json, const RetrievalFlags& flags);
void add_settings(Json& json, const PrefillFlags& flags);
/// Format of weights and memory; the model is the caller's to name.
void add_settings(Json& json, const ModelFlags& flags);

}  // namespace topkv::cli
