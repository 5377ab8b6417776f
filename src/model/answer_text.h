// The text of an answer as its tokens come, up to a stop text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "topkv/tokenizer.h"

namespace topkv {

/// Gives out whole characters, and nothing that may yet be the beginning of a stop text. One
/// thread; the tokenizer and the stop texts outlive it.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, std::span<const std::string> stop)
      : tokenizer_(&tokenizer), stop_(stop) {}

  /// What one more token allows to give out. REQUIRES: not stopped.
  std::string push(Token token);
  /// Whether a stop text has come: what follows the text that was given out.
  bool stopped() const { return stopped_; }
  /// What is held back, for no more tokens come. Nothing once stopped.
  std::string finish();

 private:
  /// Of what is held back, all that may be given out.
  std::string give();

  const Tokenizer* tokenizer_;
  std::span<const std::string> stop_;
  Utf8Stream characters_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace topkv
