// The tokens of pieces seen before. Text repeats its words, so most pieces are found here.
//
// Bounded: it forgets everything when it is full. For one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/types.h"

namespace topkv {

class WordCache {
 public:
  /// Longer pieces are not kept.
  static constexpr std::size_t max_piece_bytes = 64;

  WordCache();

  /// The tokens of a piece, empty when it is not known. Good until the next insert.
  std::span<const Token> find(std::string_view piece) const;

  /// REQUIRES: the piece is not known; neither it nor its tokens are empty.
  void insert(std::string_view piece, std::span<const Token> tokens);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text_at = 0;
    std::uint32_t text_bytes = 0;
    std::uint32_t tokens_at = 0;
    std::uint32_t token_count = 0;  // 0: an empty slot
  };

  std::size_t slot_of(std::string_view piece, std::uint64_t hash) const;
  void grow();

  std::vector<Slot> slots_;  // open addressing, a power of two in size, at most half full
  std::size_t used_ = 0;
  std::string text_;
  std::vector<Token> tokens_;
};

}  // namespace topkv
