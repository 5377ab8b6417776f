// Texts that are long by repeating something.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace topkv {

inline std::string times(std::size_t count, std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

/// Of a chat template: sets 19,200 names, from a0 to h2399, to texts of 2400 bytes.
inline std::string many_names() {
  std::string names;
  for (const char block : std::string_view("abcdefgh")) {
    names += "{% set ";
    for (int i = 0; i < 2400; ++i) names += (i > 0 ? "," : "") + (block + std::to_string(i));
    names += " = 'x' * 2400 %}";
  }
  return names;
}

}  // namespace topkv
