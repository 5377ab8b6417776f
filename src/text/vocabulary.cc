#include "src/text/vocabulary.h"

#include <fmt/format.h>

#include "src/text/byte_level.h"

namespace topkv {
namespace {

/// -1: the content is no byte's.
int byte_of_piece(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x")) return -1;
  for (int byte = 0; byte < 256; ++byte) {
    if (content == byte_piece(static_cast<unsigned char>(byte))) return byte;
  }
  return -1;
}

std::string bytes_of_piece(std::string_view content) {
  if (const int byte = byte_of_piece(content); byte >= 0) return {static_cast<char>(byte)};
  std::string bytes;
  for (std::size_t at = 0; at < content.size();) {
    const bool space = content.substr(at).starts_with(piece_space);
    bytes += space ? ' ' : content[at];
    at += space ? piece_space.size() : 1;
  }
  return bytes;
}

}  // namespace

std::string byte_piece(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

bool Vocabulary::add(const std::string& content, Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (contains(token) || !ids_.emplace(content, token).second) return false;
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {true, spelling_ == Spelling::pieces
                              ? bytes_of_piece(content)
                              : bytes_from_byte_level(content).value_or(content)};
  return true;
}

void Vocabulary::make_special(Token token) {
  tokens_[static_cast<std::size_t>(token)].bytes.clear();
}

Token Vocabulary::find(std::string_view content) const {
  const auto it = ids_.find(content);
  return it == ids_.end() ? -1 : it->second;
}

bool Vocabulary::contains(Token token) const {
  return token >= 0 && token < size() && tokens_[static_cast<std::size_t>(token)].used;
}

const std::string& Vocabulary::bytes(Token token) const {
  static const std::string none;
  return contains(token) ? tokens_[static_cast<std::size_t>(token)].bytes : none;
}

}  // namespace topkv
