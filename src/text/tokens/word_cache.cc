#include "src/text/tokens/word_cache.h"

#include <cstring>
#include <utility>

#include "src/text/tokens/keyed_hash.h"

namespace topkv {
namespace {

constexpr std::size_t first_slots = 256;
constexpr std::size_t last_slots = std::size_t{1} << 17;

}  // namespace

WordCache::WordCache() : slots_(first_slots) {}

/// The slot that holds the piece, or the empty one where it would go.
std::size_t WordCache::slot_of(std::string_view piece, std::uint64_t hash) const {
  std::size_t at = hash & (slots_.size() - 1);
  while (true) {
    const Slot& slot = slots_[at];
    if (slot.token_count == 0) return at;
    if (slot.hash == hash && slot.text_bytes == piece.size() &&
        std::memcmp(text_.data() + slot.text_at, piece.data(), piece.size()) == 0) {
      return at;
    }
    at = (at + 1) & (slots_.size() - 1);
  }
}

std::span<const Token> WordCache::find(std::string_view piece) const {
  const Slot& slot = slots_[slot_of(piece, keyed_hash(piece))];
  return {tokens_.data() + slot.tokens_at, slot.token_count};
}

void WordCache::insert(std::string_view piece, std::span<const Token> tokens) {
  if (piece.size() > max_piece_bytes) return;
  if (2 * (used_ + 1) > slots_.size()) grow();
  const std::uint64_t hash = keyed_hash(piece);
  slots_[slot_of(piece, hash)] = {
      hash, static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(piece.size()),
      static_cast<std::uint32_t>(tokens_.size()), static_cast<std::uint32_t>(tokens.size())};
  text_.append(piece);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ++used_;
}

void WordCache::grow() {
  if (slots_.size() == last_slots) {
    slots_.assign(first_slots, {});
    used_ = 0;
    text_.clear();
    tokens_.clear();
    return;
  }
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 4));
  for (const Slot& slot : old) {
    if (slot.token_count == 0) continue;
    const std::string_view piece(text_.data() + slot.text_at, slot.text_bytes);
    slots_[slot_of(piece, slot.hash)] = slot;
  }
}

}  // namespace topkv
