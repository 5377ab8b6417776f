#include "src/text/unicode/graphemes.h"

#include <utf8proc.h>

#include <algorithm>

#include "src/core/text/utf8.h"
#include "src/text/unicode/grapheme_changes.h"
#include "src/text/unicode/unicode_additions.h"

namespace topkv {
namespace {

/// The range that a character is in; null: none.
template <class Ranges>
const auto* range_of(const Ranges& ranges, char32_t c) {
  const auto range =
      std::ranges::lower_bound(ranges, c, {}, [](const auto& one) { return char32_t{one.last}; });
  return range != ranges.end() && c >= range->first ? &*range : nullptr;
}

/// What utf8proc knows and breaks as the character is to be broken.
utf8proc_int32_t known(char32_t c) {
  constexpr utf8proc_int32_t letter = 'x';
  constexpr utf8proc_int32_t combining_acute = 0x301;
  constexpr utf8proc_int32_t devanagari_visarga = 0x903;
  constexpr utf8proc_int32_t arabic_number_sign = 0x600;
  constexpr utf8proc_int32_t control = 1;
  constexpr utf8proc_int32_t copyright = 0xA9;
  if (const auto* change = range_of(grapheme_changes(), c)) {
    switch (change->kind) {
      case GraphemeChange::Kind::other:
        return letter;
      case GraphemeChange::Kind::mark:
        return combining_acute;
      case GraphemeChange::Kind::spacing_mark:
        return devanagari_visarga;
      case GraphemeChange::Kind::prepended:
        return arabic_number_sign;
      case GraphemeChange::Kind::control:
        return control;
      case GraphemeChange::Kind::pictographic:
        return copyright;
    }
  }
  const auto* addition = range_of(unicode_additions(), c);
  const bool mark = addition != nullptr && addition->category.front() == 'M';
  return mark ? combining_acute : static_cast<utf8proc_int32_t>(c);
}

}  // namespace

std::size_t first_grapheme_bytes(std::string_view text) {
  Utf8Char next = first_utf8_char(text);
  std::size_t at = next.bytes;
  utf8proc_int32_t before = known(next.code_point);
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    // Two ASCII characters part, but for CR LF.
    if (before < 0x80 && before != '\r' && static_cast<unsigned char>(text[at]) < 0x80) break;
    next = first_utf8_char(text.substr(at));
    const utf8proc_int32_t c = known(next.code_point);
    if (utf8proc_grapheme_break_stateful(before, c, &state)) break;
    at += next.bytes;
    before = c;
  }
  return at;
}

}  // namespace topkv
