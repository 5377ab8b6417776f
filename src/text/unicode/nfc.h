// Unicode's normalization form C, as the `tokenizers` library computes it.
#pragma once

#include <string>
#include <string_view>

namespace topkv {

/// The text in NFC: `text` itself, or a view of `buffer`, which is overwritten. Linear in the text
/// but for marks behind one character, which are sorted. REQUIRES: text is well-formed UTF-8 and
/// not in buffer.
std::string_view apply_nfc(std::string_view text, std::string& buffer);

}  // namespace topkv
