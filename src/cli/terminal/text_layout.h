// Text that people gave or will read: whether it is UTF-8, how wide it is, and its way onto one
// line or into a width. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace topkv::cli {

/// Where the first byte stands that is no part of valid UTF-8; npos when there is none.
std::size_t first_not_utf8(std::string_view text);

/// Valid UTF-8 whatever the text: bytes that are not become "\xff". Paths on Linux may hold any.
std::string printable(std::string_view text);

/// Throws UsageError, naming the flag and the byte, for text that is not UTF-8.
void check_utf8(std::string_view flag, std::string_view text);

/// \n, \t, \r and \\ as in C; a backslash before anything else stays as it is.
std::string unescaped(std::string_view text);

/// Characters (code points).
std::size_t width_of(std::string_view text);

/// Fits in `width` characters: control characters shown as spaces, cut with "…".
std::string one_line(std::string_view text, std::size_t width);

/// "label         text", broken at spaces so that lines fit in `width` characters where words do;
/// every line ends with a line break, and all but the first are indented by `indent`.
std::string labelled(std::string_view label, std::string_view text, std::size_t width,
                     std::size_t indent = 14);

}  // namespace topkv::cli
