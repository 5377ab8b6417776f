// A tokenizer: text to token ids, as Hugging Face's `tokenizers` library makes them, and token ids
// back to text.
//
//     auto tokenizer = topkv::Tokenizer::load("models/needle-14m/tokenizer.json");
//     std::vector<topkv::Token> ids = tokenizer.encode("Call me Ishmael.");
//     std::string text = tokenizer.decode(ids);
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

/// A tokenizer of a tokenizer.json or a GGUF file. It is immutable and safe from many threads.
///
/// A tokenizer.json may have BPE, over bytes or over SentencePiece's pieces, or Unigram. A GGUF
/// file may have BPE. docs/reference/models.md lists the parts of a tokenizer.json that are
/// supported.
class Tokenizer {
 public:
  /// Reads a tokenizer from a tokenizer.json or a GGUF file.
  ///
  /// on_warning: called once in the tokenizer's life, by the first encode that leaves bytes out.
  ///
  /// Throws FileError for a file that cannot be read or is invalid. Throws Unsupported for a
  /// component that topkv does not have; the message names it.
  static Tokenizer load(const std::filesystem::path& file, WarningFn on_warning = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Returns the token ids of a text, as the `tokenizers` library makes them.
  ///
  /// add_special_tokens: adds the special tokens of the file's post-processor, usually a BOS in
  /// front.
  ///
  /// The text need not be valid UTF-8. Invalid bytes are read as U+FFFD, as Python's decoding with
  /// errors="replace" reads them. Bytes for which the vocabulary has no token are left out, as in
  /// the library; left_out() reports them.
  ///
  /// Throws InvalidArgument for a text of 512 MiB or more. Throws FileError when the file's rules
  /// take too much work on this text:
  /// - a regular expression of the file takes too many steps;
  /// - normalizer and pre-tokenizer make more than 64 bytes for each byte of the text, and 65,536
  ///   bytes more.
  std::vector<Token> encode(std::string_view text, bool add_special_tokens = false) const;
  /// Returns the special tokens that the file's post-processor puts before a text. Usually a BOS,
  /// or nothing: Qwen's config.json names a bos_token_id, and its texts begin without one.
  std::vector<Token> beginning_tokens() const;
  /// Returns a line of ASCII that names the bytes of a text that encode leaves out, and how often.
  /// Empty when the tokens stand for the whole text, as with nearly every vocabulary. Throws as
  /// encode does.
  std::string left_out(std::string_view text) const;
  /// Returns the text of tokens, as the library's decoder puts it together. It has no space in
  /// front that encode would add. Incomplete UTF-8 becomes U+FFFD. Special tokens, and ids without
  /// a token, are left out.
  std::string decode(std::span<const Token> tokens) const;
  /// Returns the raw bytes of a token within a text, for streaming through a Utf8Stream. They
  /// include the space in front that decode drops from the first token. Empty for special tokens
  /// and for ids without a token.
  std::string bytes_of_token(Token token) const;
  /// Returns the id of a token by its content, as the file spells it ("Ġthe"). Returns -1 when
  /// there is no such token.
  Token find(std::string_view content) const;
  /// Returns the content of a token, as the file spells it ("Ġthe", "<|im_end|>"). Empty for ids
  /// without a token.
  std::string content_of_token(Token token) const;
  /// Returns the largest id plus one.
  std::int64_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns token bytes into text as they arrive. It holds back incomplete UTF-8.
class Utf8Stream {
 public:
  /// Takes more bytes. Returns the characters that are now complete; invalid bytes become U+FFFD.
  std::string push(std::string_view bytes);
  /// Ends the text. Returns U+FFFD if an incomplete character is held back, else an empty text.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace topkv
