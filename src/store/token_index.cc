#include "src/store/token_index.h"

#include <algorithm>
#include <bit>

namespace topkv {

TokenIndex::TokenIndex(std::span<const Token> tokens) {
  tokens_.reserve(tokens.size());
  before_.reserve(tokens.size());
  rehash(tokens.size());
  for (const Token token : tokens) append(token);
}

void TokenIndex::append(Token token) {
  if (tokens_.size() >= heads_.size()) rehash(2 * tokens_.size());
  // For both, so that none throws when the other has grown.
  const std::size_t more = tokens_.size() + 1;
  if (more > tokens_.capacity()) tokens_.reserve(2 * more);
  if (more > before_.capacity()) before_.reserve(2 * more);
  tokens_.push_back(token);
  before_.push_back(none);
  if (std::int32_t* head = head_of(size() - 1)) {
    before_.back() = *head;
    *head = static_cast<std::int32_t>(size() - 1);
  }
}

void TokenIndex::truncate(std::int64_t tokens) {
  while (size() > tokens) {
    // The last position of all is the first of its chain.
    if (std::int32_t* head = head_of(size() - 1)) *head = before_.back();
    tokens_.pop_back();
    before_.pop_back();
  }
}

std::int64_t TokenIndex::latest(std::span<const Token> tokens) const {
  return heads_.empty() ? none : heads_[place_of(tokens.data())];
}

std::int32_t* TokenIndex::head_of(std::int64_t position) {
  if (position + 1 < row) return nullptr;
  const Token* first = &tokens_[static_cast<std::size_t>(position + 1 - row)];
  if (std::any_of(first, first + row, [](Token token) { return token < 0; })) return nullptr;
  return &heads_[place_of(first)];
}

std::size_t TokenIndex::place_of(const Token* row) const {
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < TokenIndex::row; ++i)
    hash = (hash ^ static_cast<std::uint32_t>(row[i])) * 0x9E3779B97F4A7C15U;
  return static_cast<std::size_t>(hash >> (64 - std::countr_zero(heads_.size())));
}

void TokenIndex::rehash(std::size_t tokens) {
  constexpr std::size_t least = 256;
  heads_.assign(std::bit_ceil(std::max(tokens, least)), none);
  for (std::int64_t i = 0; i < size(); ++i) {
    std::int32_t* head = head_of(i);
    if (head == nullptr) continue;
    before_[static_cast<std::size_t>(i)] = *head;
    *head = static_cast<std::int32_t>(i);
  }
}

std::int64_t TokenIndex::memory() const {
  return static_cast<std::int64_t>((tokens_.capacity() + before_.capacity() + heads_.capacity()) *
                                   sizeof(std::int32_t));
}

}  // namespace topkv
