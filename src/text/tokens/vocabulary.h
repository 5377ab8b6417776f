// What the tokens are: content (as a tokenizer.json spells it), bytes, and whether they are
// special.
//
// Threads: const members are safe from many threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/text/tokens/decoder.h"
#include "src/text/tokens/keyed_hash.h"
#include "topkv/types.h"

namespace topkv {

/// Hash of a string for maps that are searched with a string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return keyed_hash(text); }
};
using TokenMap = std::unordered_map<std::string, Token, StringHash, std::equal_to<>>;

/// What SentencePiece has for a space.
inline constexpr std::string_view piece_space = "\u2581";

/// The content that a byte has among SentencePiece's pieces: "<0x41>".
std::string byte_piece(unsigned char byte);
/// The byte, in digits of either case; -1: the content is no byte's.
int byte_of_piece(std::string_view content);

/// Movable alone: tokens point to their contents.
class Vocabulary {
 public:
  /// How contents stand for bytes.
  enum class Spelling : std::uint8_t {
    byte_level,  ///< in the byte-level alphabet of GPT-2; what cannot be read so stands for itself
    pieces,      ///< in characters, as the decoder says
  };
  Vocabulary() = default;
  /// decoder: nothing: contents are spelled in the byte-level alphabet and put together.
  Vocabulary(Spelling spelling, std::optional<Decoder> decoder)
      : spelling_(spelling), decoder_(std::move(decoder)) {}

  ~Vocabulary() = default;
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;

  /// Ids are below this; memory grows with the largest one.
  static constexpr Token max_tokens = 1 << 20;

  /// False when the content or the id is taken. REQUIRES: 0 <= token < max_tokens, content is
  /// well-formed UTF-8.
  bool add(const std::string& content, Token token);
  /// The same, but that the content may have ids: find gives the last one that was added, and all
  /// stand for the content. False when the id is taken.
  bool add_further(const std::string& content, Token token);
  /// Leaves the token, and others of its content, out of decoded text. REQUIRES: the token was the
  /// last one added with its content.
  void make_special(Token token);

  /// -1 when there is none.
  Token find(std::string_view content) const;
  bool contains(Token token) const;
  /// As it was added; empty for ids without a token.
  const std::string& content(Token token) const;
  /// Bytes that the token stands for in a text that has begun. Empty for special tokens and for ids
  /// without a token.
  const std::string& bytes(Token token) const;
  /// The text of the tokens. Special ones, and ids without a token, are left out. Incomplete UTF-8
  /// becomes U+FFFD.
  std::string text(std::span<const Token> tokens) const;

  /// Number of tokens.
  std::int64_t count() const { return count_; }
  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// Of each content the last id that was added.
  const TokenMap& ids() const { return ids_; }
  Spelling spelling() const { return spelling_; }

 private:
  struct Entry {
    const std::string* content = nullptr;  // in ids_; null: no token
    Token earlier = -1;                    // with the same content; -1: none
    bool special = false;
    std::string bytes;
  };
  Spelling spelling_ = Spelling::byte_level;
  std::optional<Decoder> decoder_;
  TokenMap ids_;
  std::vector<Entry> tokens_;  // by id
  std::int64_t count_ = 0;
};

}  // namespace topkv
