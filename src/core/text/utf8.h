// UTF-8, decoded one character at a time from bytes that may be anything. What is not well-formed
// is taken in maximal subparts (Unicode 15, section 3.9), each of which stands for one U+FFFD: the
// practice of Python's errors="replace" and of Rust's from_utf8_lossy.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace topkv {

inline constexpr char32_t replacement_character = 0xFFFD;

struct Utf8Char {
  enum class Kind {
    valid,
    invalid,
    incomplete,  ///< the text ends within what could become a character
  };
  char32_t code_point = replacement_character;
  std::size_t bytes = 0;
  Kind kind = Kind::invalid;
};

/// The character, or the maximal subpart of one, that text begins with.
/// REQUIRES: text is not empty.
Utf8Char first_utf8_char(std::string_view text);

void append_utf8(char32_t code_point, std::string& out);

/// Bytes at the front of text that are well-formed.
std::size_t valid_utf8_bytes(std::string_view text);

/// The text with U+FFFD for each maximal subpart that is not well-formed.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace topkv
