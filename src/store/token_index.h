// An index over the tokens of a text: where three tokens in a row stood before. Chains of positions
// with one hash, as in LZ77 compressors (zlib): it takes tokens one by one and gives them back from
// the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/types.h"

namespace topkv {

/// Tokens, and an index over each three in a row. Takes 12 to 16 bytes a token, and some 20 ms for
/// a million of them, so that files keep tokens alone.
///
/// Threads: const members are safe from many threads while no thread changes it.
class TokenIndex {
 public:
  /// The tokens of a row that the index finds.
  static constexpr std::int64_t row = 3;

  TokenIndex() = default;
  explicit TokenIndex(std::span<const Token> tokens);

  std::int64_t size() const { return std::ssize(tokens_); }
  Token operator[](std::int64_t position) const {
    return tokens_[static_cast<std::size_t>(position)];
  }
  /// Adds a token. One below 0 is unknown: no row has it.
  void append(Token token);
  /// Keeps the first tokens. REQUIRES: 0 <= tokens <= size().
  void truncate(std::int64_t tokens);

  /// Returns the last position at which a row ends whose tokens have the hash of these; -1: none.
  /// REQUIRES: `row` tokens.
  std::int64_t latest(std::span<const Token> tokens) const;
  /// Returns the position before, of those with that hash; -1: none.
  std::int64_t earlier(std::int64_t position) const {
    return before_[static_cast<std::size_t>(position)];
  }

  /// Returns the bytes of memory that it takes.
  std::int64_t memory() const;

 private:
  static constexpr std::int32_t none = -1;

  /// Returns the place in heads_ of the row that ends at a position. Null: no row ends there.
  std::int32_t* head_of(std::int64_t position);
  std::size_t place_of(const Token* row) const;
  /// Makes room for heads of this number of tokens, and enters all rows again.
  void rehash(std::size_t tokens);

  std::vector<Token> tokens_;
  std::vector<std::int32_t> before_;  // of each position: the one before with that hash
  std::vector<std::int32_t> heads_;   // the last position with a hash; a power of two
};

}  // namespace topkv
