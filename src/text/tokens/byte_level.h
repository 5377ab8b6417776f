// The byte-level alphabet: every byte is written as one printable character, so that a vocabulary
// of arbitrary byte strings fits into JSON. Printable Latin-1 stands for itself, the other 68
// bytes for U+0100 onwards in ascending order ("Ġ", U+0120, is the space).
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), 2019.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace topkv {

/// The bytes that a vocabulary entry stands for; nothing when one of its characters is not of the
/// alphabet. REQUIRES: entry is well-formed UTF-8.
std::optional<std::string> bytes_from_byte_level(std::string_view entry);

/// The character of the alphabet that a byte is written as.
std::string byte_level_letter(unsigned char byte);

}  // namespace topkv
