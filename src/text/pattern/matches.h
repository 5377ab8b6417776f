// All matches of a regular expression in a text, as Oniguruma's find_iter gives them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "src/core/text/utf8.h"
#include "src/text/pattern/regex.h"

namespace topkv {

/// Calls give(begin, end), in bytes, for each match from left to right; some may be empty.
/// REQUIRES: text is well-formed UTF-8. Throws as Regex::find does.
template <class Give>
void for_each_match(const Regex& regex, std::string_view text, RegexScratch& scratch,
                    const Give& give) {
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const auto match = regex.find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && match->end == last_end) {
      // An empty match right behind a match is none: look on from the next character.
      if (match->end == text.size()) break;
      from = match->end + first_utf8_char(text.substr(match->end)).bytes;
      continue;
    }
    give(match->begin, match->end);
    from = match->end;
    last_end = match->end;
  }
}

}  // namespace topkv
