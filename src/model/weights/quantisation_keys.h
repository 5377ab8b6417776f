// What is known of the keys of quantization_config besides those that quantisation.h reads: tools
// write how they found the codes, and for which kernels, beside how these are stored.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace topkv {

/// What to tell of keys of the configuration's "quantization_config" that say something and are
/// neither read nor known to leave the weights as they are, on one line; empty: nothing.
/// REQUIRES: Quantisation::parse takes it.
std::string unread_quantisation_warning(const nlohmann::json& config,
                                        const std::filesystem::path& file);

}  // namespace topkv
