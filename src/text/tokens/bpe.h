// Byte-pair encoding: a piece of text starts as one token per byte, or per character; then the
// neighbours whose merge was learnt first are merged, leftmost first, until none can be.
// Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016.
//
// Threads: const members are safe from many threads, each with its own WordCache.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/tokens/vocabulary.h"
#include "src/text/tokens/word_cache.h"
#include "topkv/types.h"

namespace topkv {

/// How often each byte was found.
using ByteCounts = std::array<std::int64_t, 256>;

class Bpe {
 public:
  struct Options {
    bool ignore_merges = false;  ///< a piece that is a token as a whole becomes that (Llama 3)
    // For bytes, or characters of a vocabulary that is spelled in pieces, that are no token:
    bool byte_fallback = false;  ///< characters become the tokens of their bytes, if there are all
    Token unknown = -1;          ///< else this; -1: there is none, and they are left out
    bool fuse_unknown = false;   ///< those next to each other become one
  };

  /// What merges start from are bytes; where the vocabulary is spelled in pieces, characters.
  /// REQUIRES: byte_fallback only of a vocabulary that is spelled in pieces.
  Bpe(const Vocabulary& vocabulary, const Options& options);

  /// The next merge to be learnt. A pair given again counts from its last place.
  void add_merge(Token left, Token right, Token merged) {
    add_merge(left, right, merged, next_rank_++);
  }
  /// A merge before those of higher rank; of the same, those further left come first.
  void add_merge(Token left, Token right, Token merged, std::int32_t rank);

  /// Appends the tokens of one piece. REQUIRES: it is at most ByteAllowance::longest_text bytes
  /// long.
  void encode(std::string_view piece, WordCache& cache, std::vector<Token>& out) const;

  /// Whether every text has tokens for all that it is made of.
  bool complete() const { return complete_; }
  /// Adds the bytes of a piece for which encode appends no token.
  void count_left_out(std::string_view piece, ByteCounts& counts) const;

 private:
  struct Merge {
    std::uint64_t pair = ~std::uint64_t{0};  // left << 32 | right; all ones: an empty slot
    std::int32_t rank = no_merge;
    Token merged = -1;
  };
  static constexpr std::int32_t no_merge = INT32_MAX;

  std::size_t slot_of(std::uint64_t pair) const;
  const Merge& find_merge(Token left, Token right) const;
  void grow();
  /// Gives put each token that merges start from.
  template <class Put>
  void start(std::string_view piece, const Put& put) const;
  /// Cuts a piece into bytes or characters: known(token), in_bytes(bytes) where each has a token,
  /// or missing(bytes).
  template <class Known, class Bytes, class Missing>
  void for_each_unit(std::string_view piece, const Known& known, const Bytes& in_bytes,
                     const Missing& missing) const;
  void merge_short(std::string_view piece, std::vector<Token>& out) const;
  void merge_long(std::string_view piece, std::vector<Token>& out) const;

  std::array<Token, 256> byte_tokens_ = {};  // -1: none
  bool pieces_ = false;
  bool complete_ = true;
  Token unknown_ = -1;
  bool fuse_unknown_ = false;
  std::unordered_map<char32_t, Token> characters_;  // that are tokens; of pieces
  std::vector<Merge> merges_;  // open addressing, a power of two in size, at most half full
  std::int32_t merge_count_ = 0;
  std::int32_t next_rank_ = 0;
  TokenMap whole_words_;  // by bytes; empty without ignore_merges
};

}  // namespace topkv
