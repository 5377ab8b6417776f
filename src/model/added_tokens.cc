#include "src/model/added_tokens.h"

#include <algorithm>

#include "src/core/utf8.h"

namespace topkv {
namespace {

/// Unicode's White_Space.
bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Bytes of white space at the front.
std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Char next = first_utf8_char(text.substr(at));
    if (!is_white_space(next.code_point)) break;
    at += next.bytes;
  }
  return at;
}

/// Where the white space at the end begins.
std::size_t trailing_space(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
    if (!is_white_space(first_utf8_char(text.substr(at)).code_point)) break;
    begin = at;
  }
  return begin;
}

std::uint64_t edge(std::int32_t node, char byte) {
  return static_cast<std::uint64_t>(node) * 256 + static_cast<unsigned char>(byte);
}

}  // namespace

void AddedTokens::add(std::string_view content, Token token, bool strip_left, bool strip_right) {
  std::int32_t node = 0;
  for (const char byte : content) {
    std::int32_t& child =
        node == 0 ? roots_[static_cast<unsigned char>(byte)] : edges_[edge(node, byte)];
    if (child == 0) {
      child = static_cast<std::int32_t>(entry_of_.size());
      entry_of_.push_back(-1);
    }
    node = child;
  }
  std::int32_t& entry = entry_of_[static_cast<std::size_t>(node)];
  if (entry >= 0) return;
  entry = static_cast<std::int32_t>(entries_.size());
  entries_.push_back({token, strip_left, strip_right});
}

AddedTokens::Match AddedTokens::longest_at(std::string_view text) const {
  Match match;
  std::int32_t node = roots_[static_cast<unsigned char>(text[0])];
  for (std::size_t bytes = 1; node != 0; ++bytes) {
    const std::int32_t entry = entry_of_[static_cast<std::size_t>(node)];
    if (entry >= 0) match = {bytes, entry};
    if (bytes == text.size()) break;
    const auto next = edges_.find(edge(node, text[bytes]));
    node = next == edges_.end() ? 0 : next->second;
  }
  return match;
}

void AddedTokens::split(std::string_view text, const PartFn& part) const {
  std::size_t given = 0;
  if (entries_.empty()) {
    if (!text.empty()) part(text, -1);
    return;
  }
  for (std::size_t at = 0; at < text.size();) {
    if (roots_[static_cast<unsigned char>(text[at])] == 0) {
      ++at;
      continue;
    }
    const Match match = longest_at(text.substr(at));
    if (match.bytes == 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[static_cast<std::size_t>(match.entry)];
    std::size_t begin = at;
    std::size_t end = at + match.bytes;
    at = end;  // the next token may begin within the space that this one takes
    if (entry.strip_left) {
      begin = std::max(given, trailing_space(text.substr(0, begin)));
    }
    if (entry.strip_right) end += leading_space(text.substr(end));
    if (given < begin) part(text.substr(given, begin - given), -1);
    part({}, entry.token);
    given = end;
  }
  if (given < text.size()) part(text.substr(given), -1);
}

}  // namespace topkv
