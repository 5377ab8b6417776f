// The text of an answer as its tokens come, up to a stop text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "topkv/tokenizer.h"

namespace topkv {

/// Gives out whole characters, and nothing that may yet be the beginning of a stop text. One
/// thread; the tokenizer, the stop texts and the spelled tokens outlive it.
class AnswerText {
 public:
  /// spelled: special tokens that have text, as in GenerateOptions.
  AnswerText(const Tokenizer& tokenizer, std::span<const std::string> stop,
             std::span<const Token> spelled = {})
      : tokenizer_(&tokenizer), stop_(stop), spelled_(spelled), forms_(stop.begin(), stop.end()) {}

  /// What one more token allows to give out. REQUIRES: not stopped.
  std::string push(Token token);
  /// Whether a stop text has come: what follows the text that was given out.
  bool stopped() const { return stopped_; }
  /// What is held back, for no more tokens come. Nothing once stopped.
  std::string finish();

 private:
  /// A special token: it has a mark in the held text where it is spelled or a stop text has it.
  void push_special(Token token);
  /// Of what is held back, all that may be given out.
  std::string give();
  /// A part of the held text as it is given out: marks become spellings, or nothing.
  std::string shown(const std::string& part) const;

  const Tokenizer* tokenizer_;
  std::span<const std::string> stop_;
  std::span<const Token> spelled_;
  std::vector<std::string> forms_;  // stop texts, with marks for the special tokens that came
  Utf8Stream characters_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace topkv
