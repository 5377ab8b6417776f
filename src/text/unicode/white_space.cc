#include "src/text/unicode/white_space.h"

#include "src/core/text/utf8.h"

namespace topkv {

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Char next = first_utf8_char(text.substr(at));
    if (!is_white_space(next.code_point)) break;
    at += next.bytes;
  }
  return at;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
    if (!is_white_space(first_utf8_char(text.substr(at)).code_point)) break;
    begin = at;
  }
  return begin;
}

}  // namespace topkv
