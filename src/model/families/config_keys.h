// What is known of the keys of a config.json besides those that are read: which are harmless, which
// mean a network that topkv does not run, and that all others are told.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/families/families.h"

namespace topkv {

/// Keys of the file that say something and are neither read by the family's network nor known as
/// harmless, each as "key is value". Keys that are null, false, 0 or empty say nothing.
/// Throws Unsupported naming the key and its value when a key means another network than the
/// family's. REQUIRES: config is an object.
std::vector<std::string> unread_keys(const nlohmann::json& config,
                                     const std::filesystem::path& file, const Family& family);

/// What to tell of such keys, on one line; empty for none.
std::string unread_keys_warning(const std::vector<std::string>& keys,
                                const std::filesystem::path& file, std::string_view model_type);

/// A value that says: nothing of the kind. null, false, 0 and what is empty.
bool says_nothing(const nlohmann::json& value);

/// "key is value", for messages.
std::string key_and_value(std::string_view key, const nlohmann::json& value);

}  // namespace topkv
