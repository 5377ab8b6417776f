// The `tokenizers` library gives a pre-tokenizer's regular expression to Oniguruma; topkv matches
// it with PCRE2. The two read the same text differently in places (\s, \h, \v, $, possessive
// intervals, nested classes), so a pattern is translated piece by piece, and what is not known to
// mean the same is refused.
#pragma once

#include <string>
#include <string_view>

namespace topkv {

/// A PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP) that matches what Oniguruma with Ruby syntax matches
/// for this one. REQUIRES: pattern is well-formed UTF-8.
/// Throws Unsupported naming the construct and its place.
std::string pcre2_from_oniguruma(std::string_view pattern);

/// A PCRE2 pattern that matches the text itself. REQUIRES: text is well-formed UTF-8.
std::string pcre2_from_literal(std::string_view text);

}  // namespace topkv
