// Text to tokens, as the `tokenizers` library gives them, and token bytes back to text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/types.h"
#include "topkv/warning.h"

namespace topkv {

/// BPE, of bytes or of SentencePiece's pieces, or Unigram, of a tokenizer.json; BPE of a GGUF file.
/// docs/reference/models.md lists the parts of a tokenizer.json that are taken.
/// Immutable; safe from many threads.
class Tokenizer {
 public:
  /// on_warning is called once in the tokenizer's life, by the first encode that leaves bytes out.
  /// Throws FileError, or Unsupported naming the component.
  static Tokenizer load(const std::filesystem::path& file, WarningFn on_warning = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Token ids as the `tokenizers` library gives them. add_special_tokens: apply the
  /// post-processor's template (a BOS, usually). Text need not be valid UTF-8: bytes that are not
  /// are read as U+FFFD, as Python's decoding with errors="replace" does. Bytes for which the
  /// vocabulary has no token are left out, as the library leaves them out: see left_out.
  /// Throws InvalidArgument for 512 MiB or more, FileError when a regular expression of the file
  /// takes too many steps on this text, or its normalizer and pre-tokenizer make more than 64 bytes
  /// for each byte of it and 65,536 more.
  std::vector<Token> encode(std::string_view text, bool add_special_tokens = false) const;
  /// What encode leaves out of a text: one line of ASCII that names the bytes and their number.
  /// Empty when the tokens stand for the whole text, which is so for nearly every vocabulary.
  /// Throws as encode does.
  std::string left_out(std::string_view text) const;
  /// The text of the tokens, as the library's decoder puts it together: without the space in front
  /// that encode puts there, if any; incomplete UTF-8 becomes U+FFFD. Special tokens, and ids that
  /// are no token, are left out.
  std::string decode(std::span<const Token> tokens) const;
  /// Raw bytes of one token in a text that has begun, for streaming through a Utf8Stream: with the
  /// space in front that decode drops from the first. Empty for special tokens.
  std::string bytes_of_token(Token token) const;
  /// Id of a token by its content as the file spells it ("Ġthe"), -1 when there is none.
  Token find(std::string_view content) const;
  /// Content of a token as the file spells it ("Ġthe", "<|im_end|>"); empty for ids without a
  /// token.
  std::string content_of_token(Token token) const;
  /// One more than the largest id.
  std::int64_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns token bytes into text as they arrive, holding back incomplete UTF-8.
class Utf8Stream {
 public:
  /// Complete characters so far not given out; invalid bytes become U+FFFD.
  std::string push(std::string_view bytes);
  /// What is held back, as U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace topkv
