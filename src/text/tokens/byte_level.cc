#include "src/text/tokens/byte_level.h"

#include <algorithm>
#include <array>

#include "src/core/text/utf8.h"

namespace topkv {
namespace {

constexpr int alphabet_end = 0x100 + 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Code point -> byte, -1 outside the alphabet.
constexpr std::array<int, alphabet_end> make_bytes() {
  std::array<int, alphabet_end> bytes{};
  bytes.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = stands_for_itself(byte) ? byte : next++;
    bytes[static_cast<std::size_t>(code_point)] = byte;
  }
  return bytes;
}

constexpr std::array<int, alphabet_end> byte_of = make_bytes();

}  // namespace

std::optional<std::string> bytes_from_byte_level(std::string_view entry) {
  std::string bytes;
  bytes.reserve(entry.size());
  while (!entry.empty()) {
    const Utf8Char next = first_utf8_char(entry);
    if (next.code_point >= byte_of.size() || byte_of[next.code_point] < 0) return {};
    bytes.push_back(static_cast<char>(byte_of[next.code_point]));
    entry.remove_prefix(next.bytes);
  }
  return bytes;
}

std::string byte_level_letter(unsigned char byte) {
  const auto* const found = std::ranges::find(byte_of, int{byte});
  std::string letter;
  append_utf8(static_cast<char32_t>(found - byte_of.begin()), letter);
  return letter;
}

}  // namespace topkv
