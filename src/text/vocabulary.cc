#include "src/text/vocabulary.h"

#include "src/text/byte_level.h"

namespace topkv {

bool Vocabulary::add(const std::string& content, Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (contains(token) || !ids_.emplace(content, token).second) return false;
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {true, bytes_from_byte_level(content).value_or(content)};
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
