// Characters that Unicode 15 to 16 added, by general category. PCRE2 10.42 knows Unicode 14, the
// `tokenizers` library's Oniguruma knows 16; without these, text in new characters would be cut at
// other places. (U+1171E, which Unicode 15 moved from Mn to Mc, stays Mn as well.)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace topkv {

struct UnicodeRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::string_view category;  ///< two letters: "Lo"
};

/// Ascending.
std::span<const UnicodeRange> unicode_additions();

}  // namespace topkv
