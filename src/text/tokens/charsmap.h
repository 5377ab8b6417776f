// SentencePiece's precompiled_charsmap, the "Precompiled" normalizer of a tokenizer.json: texts and
// what stands for them, in a trie.
//
//   4 bytes    size of the trie in bytes, little-endian
//   trie       a double array of 32-bit units (Aoe 1989), as darts-clone lays it out
//   texts      UTF-8, each with a zero byte behind it; the trie's values are places in it
//
// Threads: immutable; safe from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/tokens/byte_allowance.h"

namespace topkv {

class Charsmap {
 public:
  /// base64: what the file has. Throws FileError, with no path in front, for what is cut off or
  /// points outside of itself.
  static Charsmap parse(std::string_view base64);

  /// The text with all that has a replacement replaced, as the `tokenizers` library does it: each
  /// grapheme cluster of less than six bytes by what the shortest of its beginnings that is in the
  /// trie maps to (what is behind that beginning is lost), others character by character. Appends
  /// to out. REQUIRES: text is well-formed UTF-8. Throws FileError, with no path in front, when out
  /// gets longer than is allowed.
  void apply(std::string_view text, const ByteAllowance& allowance, std::string& out) const;

 private:
  std::optional<std::string_view> find(std::string_view text) const;
  void check() const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace topkv
