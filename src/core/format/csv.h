// CSV as RFC 4180 has it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace topkv {

/// The text as one field, quoted where it must be.
std::string csv_field(const std::string& text);

/// Objects of the same members, below a heading line: all members but lists. What is null is empty.
/// lines: at least one.
std::string csv_lines(const std::vector<nlohmann::ordered_json>& lines);

}  // namespace topkv
