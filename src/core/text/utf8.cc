#include "src/core/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace topkv {
namespace {

/// Which second bytes a lead byte allows, and how many bytes follow it (Unicode 15, table 3-7).
struct Lead {
  std::size_t following = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {};
}

std::size_t ascii_bytes(std::string_view text) {
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Char first_utf8_char(std::string_view text) {
  using Kind = Utf8Char::Kind;
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) return {byte, 1, Kind::valid};
  const Lead lead = lead_of(byte);
  if (lead.following == 0) return {replacement_character, 1, Kind::invalid};
  char32_t code_point = byte & (0x3FU >> lead.following);
  for (std::size_t i = 1; i <= lead.following; ++i) {
    if (i == text.size()) return {replacement_character, i, Kind::incomplete};
    const auto next = static_cast<unsigned char>(text[i]);
    const bool fits = i == 1 ? next >= lead.low && next <= lead.high : (next & 0xC0U) == 0x80;
    if (!fits) return {replacement_character, i, Kind::invalid};
    code_point = (code_point << 6U) | (next & 0x3FU);
  }
  return {code_point, lead.following + 1, Kind::valid};
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  const std::uint32_t c = code_point;
  if (c < 0x80) {
    put(c);
    return;
  }
  if (c < 0x800) {
    put(0xC0U | (c >> 6U));
  } else {
    if (c < 0x10000) {
      put(0xE0U | (c >> 12U));
    } else {
      put(0xF0U | (c >> 18U));
      put(0x80U | ((c >> 12U) & 0x3FU));
    }
    put(0x80U | ((c >> 6U) & 0x3FU));
  }
  put(0x80U | (c & 0x3FU));
}

std::size_t valid_utf8_bytes(std::string_view text) {
  std::size_t at = 0;
  while (true) {
    at += ascii_bytes(text.substr(at));
    if (at == text.size()) return at;
    const Utf8Char next = first_utf8_char(text.substr(at));
    if (next.kind != Utf8Char::Kind::valid) return at;
    at += next.bytes;
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const std::size_t valid = valid_utf8_bytes(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return out;
    append_utf8(replacement_character, out);
    text.remove_prefix(first_utf8_char(text).bytes);
  }
}

}  // namespace topkv
