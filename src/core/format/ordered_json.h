// JSON whose keys keep the order of the text, for what is written out again.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace topkv {

/// Most keys of an object: the type looks through all of them for each.
inline constexpr std::size_t max_ordered_keys = 1024;

/// Parses as parse_json does, with its limits, and max_ordered_keys for each object. Throws
/// FileError that begins with `what`.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what);

}  // namespace topkv
