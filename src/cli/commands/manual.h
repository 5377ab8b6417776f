// The manual page, from what --help says.
#pragma once

#include <string>

namespace topkv::cli {

/// In man(7)'s macros, section 1.
std::string manual_text();

}  // namespace topkv::cli
