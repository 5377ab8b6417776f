// CSV as RFC 4180 has it.
#pragma once

#include <string>

namespace topkv {

/// The text as one field, quoted where it must be.
std::string csv_field(const std::string& text);

}  // namespace topkv
