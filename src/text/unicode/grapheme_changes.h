// Characters that break otherwise in the Unicode version of the `tokenizers` library (17) than in
// utf8proc's (14), beside the marks of unicode_additions: found by comparing all of them.
#pragma once

#include <cstdint>
#include <span>

namespace topkv {

struct GraphemeChange {
  enum class Kind : std::uint8_t { other, mark, spacing_mark, prepended, control, pictographic };
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  Kind kind = Kind::other;
};

/// Ascending.
std::span<const GraphemeChange> grapheme_changes();

}  // namespace topkv
