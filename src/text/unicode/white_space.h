// White space as Rust's char::is_whitespace has it: Unicode's White_Space.
#pragma once

#include <cstddef>
#include <string_view>

namespace topkv {

bool is_white_space(char32_t c);

/// Bytes of white space at the front. REQUIRES: text is well-formed UTF-8.
std::size_t leading_space(std::string_view text);

/// Where the white space at the end begins. REQUIRES: text is well-formed UTF-8.
std::size_t trailing_space(std::string_view text);

}  // namespace topkv
