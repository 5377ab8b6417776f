#include "src/text/tokens/bpe.h"

#include <algorithm>
#include <cassert>
#include <queue>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/tokens/byte_allowance.h"
#include "src/text/tokens/byte_level.h"
#include "src/text/tokens/keyed_hash.h"

namespace topkv {
namespace {

/// Pieces up to this many bytes are merged by scanning for the best pair: the fastest way for
/// words, quadratic for the long runs that the other way is for.
constexpr std::size_t max_scanned_bytes = 64;

/// Bytes that stand nowhere in well-formed UTF-8.
bool never_in_utf8(int byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

std::uint64_t pair_of(Token left, Token right) {
  return static_cast<std::uint64_t>(left) << 32U | static_cast<std::uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, const Options& options)
    : pieces_(vocabulary.spelling() == Vocabulary::Spelling::pieces),
      unknown_(options.unknown),
      fuse_unknown_(options.fuse_unknown),
      merges_(256) {
  byte_tokens_.fill(-1);
  for (const auto& [content, token] : vocabulary.ids()) {
    if (pieces_) {
      if (content.empty()) continue;
      const Utf8Char first = first_utf8_char(content);
      if (first.bytes == content.size()) characters_.emplace(first.code_point, token);
      if (options.ignore_merges) whole_words_.emplace(content, token);
      continue;
    }
    auto bytes = bytes_from_byte_level(content);
    if (!bytes) continue;
    if (bytes->size() == 1) byte_tokens_[static_cast<unsigned char>(bytes->front())] = token;
    if (options.ignore_merges) whole_words_.emplace(*std::move(bytes), token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    Token& token = byte_tokens_[static_cast<std::size_t>(byte)];
    if (pieces_ && options.byte_fallback) {
      token = vocabulary.find(byte_piece(static_cast<unsigned char>(byte)));
    }
    complete_ = complete_ && (token >= 0 || never_in_utf8(byte) || unknown_ >= 0);
  }
}

void Bpe::add_merge(Token left, Token right, Token merged, std::int32_t rank) {
  if (2 * (static_cast<std::size_t>(merge_count_) + 1) > merges_.size()) grow();
  Merge& merge = merges_[slot_of(pair_of(left, right))];
  if (merge.merged < 0) ++merge_count_;
  merge = {pair_of(left, right), rank, merged};
}

template <class Known, class Bytes, class Missing>
void Bpe::for_each_unit(std::string_view piece, const Known& known, const Bytes& in_bytes,
                        const Missing& missing) const {
  const auto token_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (!pieces_) {
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const Token token = token_of(piece[i]);
      if (token >= 0) {
        known(token);
      } else {
        missing(piece.substr(i, 1));
      }
    }
    return;
  }
  while (!piece.empty()) {
    const Utf8Char next = first_utf8_char(piece);
    const std::string_view bytes = piece.substr(0, next.bytes);
    piece.remove_prefix(next.bytes);
    const auto character = characters_.find(next.code_point);
    if (character != characters_.end()) {
      known(character->second);
    } else if (std::ranges::all_of(bytes, [&](char byte) { return token_of(byte) >= 0; })) {
      in_bytes(bytes);
    } else {
      missing(bytes);
    }
  }
}

template <class Put>
void Bpe::start(std::string_view piece, const Put& put) const {
  // As the `tokenizers` library does it, an unknown token waits for a known one behind it, also
  // where bytes come in between.
  bool unknown = false;
  for_each_unit(
      piece,
      [&](Token token) {
        if (unknown) put(unknown_);
        unknown = false;
        put(token);
      },
      [&](std::string_view bytes) {
        for (const char byte : bytes) put(byte_tokens_[static_cast<unsigned char>(byte)]);
      },
      [&](std::string_view) {
        if (unknown_ < 0) return;
        if (unknown && !fuse_unknown_) put(unknown_);
        unknown = true;
      });
  if (unknown) put(unknown_);
}

void Bpe::count_left_out(std::string_view piece, ByteCounts& counts) const {
  if (complete_ || whole_words_.contains(piece)) return;
  for_each_unit(
      piece, [](Token) {}, [](std::string_view) {},
      [&](std::string_view bytes) {
        for (const char byte : bytes) ++counts[static_cast<unsigned char>(byte)];
      });
}

void Bpe::grow() {
  const std::vector<Merge> old = std::exchange(merges_, std::vector<Merge>(merges_.size() * 2));
  for (const Merge& merge : old) {
    if (merge.merged >= 0) merges_[slot_of(merge.pair)] = merge;
  }
}

/// Where the merge of a pair is, or the empty slot where it would be.
std::size_t Bpe::slot_of(std::uint64_t pair) const {
  std::size_t at = keyed_hash(pair) & (merges_.size() - 1);
  while (merges_[at].merged >= 0 && merges_[at].pair != pair) at = (at + 1) & (merges_.size() - 1);
  return at;
}

/// With rank = no_merge when there is none.
const Bpe::Merge& Bpe::find_merge(Token left, Token right) const {
  return merges_[slot_of(pair_of(left, right))];
}

void Bpe::encode(std::string_view piece, WordCache& cache, std::vector<Token>& out) const {
  assert(piece.size() <= ByteAllowance::longest_text);
  if (piece.size() == 1 && !pieces_ && byte_tokens_[static_cast<unsigned char>(piece[0])] >= 0) {
    out.push_back(byte_tokens_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  const bool cached = piece.size() <= WordCache::max_piece_bytes;
  if (cached) {
    const auto known = cache.find(piece);
    if (!known.empty()) {
      out.insert(out.end(), known.begin(), known.end());
      return;
    }
  }
  const std::size_t begin = out.size();
  const auto whole = whole_words_.find(piece);
  if (whole != whole_words_.end()) {
    out.push_back(whole->second);
  } else if (piece.size() <= max_scanned_bytes) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
  if (cached && out.size() > begin) cache.insert(piece, std::span(out).subspan(begin));
}

void Bpe::merge_short(std::string_view piece, std::vector<Token>& out) const {
  struct Symbol {
    Token token = -1;
    std::int32_t rank = no_merge;  // of the merge with the next symbol
    Token merged = -1;
  };
  std::array<Symbol, max_scanned_bytes> symbols;
  std::size_t count = 0;
  const auto look_up = [&](std::size_t i) {
    const Merge& merge = find_merge(symbols[i].token, symbols[i + 1].token);
    symbols[i].rank = merge.rank;
    symbols[i].merged = merge.merged;
  };
  start(piece, [&](Token token) { symbols[count++].token = token; });
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (symbols[i].rank < symbols[best].rank) best = i;
    }
    if (symbols[best].rank == no_merge) break;
    symbols[best].token = symbols[best].merged;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  for (std::size_t i = 0; i < count; ++i) out.push_back(symbols[i].token);
}

void Bpe::merge_long(std::string_view piece, std::vector<Token>& out) const {
  // A linked list of symbols, at most one for each byte, and a heap of the merges that were
  // possible when they were put in. One that no longer is, is recognised by its rank.
  struct Symbol {
    Token token = -1;  // -1: merged into the symbol before
    std::int32_t previous = -1;
    std::int32_t next = -1;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t place;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  std::vector<Symbol> symbols(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto symbol = [&](std::int32_t place) -> Symbol& {
    return symbols[static_cast<std::size_t>(place)];
  };
  const auto merge_at = [&](std::int32_t place) -> const Merge& {
    return find_merge(symbol(place).token, symbol(symbol(place).next).token);
  };
  const auto propose = [&](std::int32_t place) {
    if (place < 0 || symbol(place).next < 0) return;
    const std::int32_t rank = merge_at(place).rank;
    if (rank != no_merge) heap.push({rank, place});
  };
  std::int32_t count = 0;
  start(piece, [&](Token token) {
    symbol(count) = {token, count - 1, -1};
    if (count > 0) symbol(count - 1).next = count;
    ++count;
  });
  if (count == 0) return;  // all was left out
  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) propose(i);
  while (!heap.empty()) {
    const auto [rank, place] = heap.top();
    heap.pop();
    Symbol& left = symbol(place);
    if (left.token < 0 || left.next < 0) continue;
    const Merge& merge = merge_at(place);
    if (merge.rank != rank) continue;
    Symbol& right = symbol(left.next);
    left.token = merge.merged;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) symbol(left.next).previous = place;
    propose(left.previous);
    propose(place);
  }
  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) out.push_back(symbol(i).token);
}

}  // namespace topkv
