// Text without the white space around it.
#pragma once

#include <string_view>

namespace topkv {

/// Returns the text without spaces, tabs and line ends at its beginning and its end.
inline std::string_view stripped(std::string_view text) {
  constexpr std::string_view white = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(white);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(white) + 1 - begin);
}

}  // namespace topkv
