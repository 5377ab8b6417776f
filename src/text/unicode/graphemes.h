// Where a user-perceived character ends: extended grapheme clusters (Unicode Annex 29), by the
// Unicode version that the `tokenizers` library has.
#pragma once

#include <cstddef>
#include <string_view>

namespace topkv {

/// Bytes of the cluster that text begins with. REQUIRES: text is well-formed UTF-8, not empty.
std::size_t first_grapheme_bytes(std::string_view text);

}  // namespace topkv
