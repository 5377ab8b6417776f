// A unigram language model over pieces: a text becomes the pieces that it can be cut into whose
// scores add up to the most.
// Source: Kudo, "Subword Regularization", 2018, section 3.2; the search is Viterbi's.
//
// Threads: const members are safe from many threads, each with its own WordCache.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "src/text/tokens/prefix_tree.h"
#include "src/text/tokens/vocabulary.h"
#include "src/text/tokens/word_cache.h"
#include "topkv/types.h"

namespace topkv {

class Unigram {
 public:
  /// Longer pieces are refused: the time is linear in the text times the longest piece.
  static constexpr std::size_t max_piece_bytes = 1024;
  /// Of all pieces together, each of which may take 13 bytes of memory; the largest vocabularies
  /// have 3 MB.
  static constexpr std::size_t max_bytes = std::size_t{1} << 23U;

  /// scores: of all tokens, by id. unknown: stands for characters that are no pieces; those next to
  /// each other become one. byte_fallback: they become the tokens of their bytes instead, where the
  /// vocabulary has all of these.
  /// REQUIRES: no piece is longer than max_piece_bytes, nor all together than max_bytes; scores are
  /// finite.
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, Token unknown,
          bool byte_fallback);

  /// Appends the tokens of one piece of text, as the `tokenizers` library finds them: among cuts of
  /// equal scores that whose last piece is the longest.
  /// REQUIRES: text is at most ByteAllowance::longest_text bytes long.
  void encode(std::string_view text, WordCache& cache, std::vector<Token>& out) const;

 private:
  void search(std::string_view text, std::vector<Token>& out) const;
  void append_unknown(std::string_view text, std::vector<Token>& out) const;

  PrefixTree pieces_;
  std::vector<double> scores_;
  Token unknown_;
  double unknown_score_;
  std::array<Token, 256> byte_tokens_;  // -1: none
};

}  // namespace topkv
