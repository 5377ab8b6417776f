// JSON schemas of clients, before the grammar engine sees them.
#pragma once

#include <string>
#include <string_view>

namespace topkv {

/// Returns a schema as the engine takes it: what it returns stands for no text that the given
/// schema does not stand for. Objects with "properties" have no others; objects and arrays without
/// a word of what they hold may hold anything.
///
/// Throws InvalidArgument that names the place, for a schema that is no JSON, that is beyond the
/// limits, or that has a keyword which the engine would leave out.
std::string checked_json_schema(std::string_view schema);

}  // namespace topkv
