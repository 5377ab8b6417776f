#include "src/text/tokens/vocabulary.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/tokens/byte_level.h"

namespace topkv {
std::string byte_piece(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

int byte_of_piece(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content.back() != '>') return -1;
  int byte = 0;
  const char* const end = content.data() + 5;
  const auto [read, error] = std::from_chars(content.data() + 3, end, byte, 16);
  return error == std::errc() && read == end && byte >= 0 ? byte : -1;
}

bool Vocabulary::add(const std::string& content, Token token) {
  return find(content) < 0 && add_further(content, token);
}

bool Vocabulary::add_further(const std::string& content, Token token) {
  if (contains(token)) return false;
  const auto index = static_cast<std::size_t>(token);
  const auto [entry, is_new] = ids_.emplace(content, token);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {
      &entry->first, is_new ? -1 : std::exchange(entry->second, token), false,
      decoder_ ? decoder_->bytes(content) : bytes_from_byte_level(content).value_or(content)};
  ++count_;
  return true;
}

void Vocabulary::make_special(Token token) {
  while (token >= 0) {
    Entry& entry = tokens_[static_cast<std::size_t>(token)];
    if (entry.special) return;
    entry.special = true;
    entry.bytes.clear();
    token = entry.earlier;
  }
}

Token Vocabulary::find(std::string_view content) const {
  const auto it = ids_.find(content);
  return it == ids_.end() ? -1 : it->second;
}

bool Vocabulary::contains(Token token) const {
  return token >= 0 && token < size() &&
         tokens_[static_cast<std::size_t>(token)].content != nullptr;
}

const std::string& Vocabulary::content(Token token) const {
  static const std::string none;
  return contains(token) ? *tokens_[static_cast<std::size_t>(token)].content : none;
}

const std::string& Vocabulary::bytes(Token token) const {
  static const std::string none;
  return contains(token) ? tokens_[static_cast<std::size_t>(token)].bytes : none;
}

std::string Vocabulary::text(std::span<const Token> tokens) const {
  if (decoder_) {
    std::vector<std::string> contents;
    for (const Token token : tokens) {
      if (!contains(token)) continue;
      const Entry& entry = tokens_[static_cast<std::size_t>(token)];
      if (!entry.special) contents.push_back(*entry.content);
    }
    return decoder_->text(std::move(contents));
  }
  std::string all;
  for (const Token token : tokens) all += bytes(token);
  return valid_utf8_bytes(all) < all.size() ? replace_invalid_utf8(all) : all;
}

}  // namespace topkv
