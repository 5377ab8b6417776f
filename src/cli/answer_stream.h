// An answer on its way to standard output: characters as their bytes come.
#pragma once

#include <cstdint>
#include <string>

#include "topkv/tokenizer.h"

namespace topkv::cli {

class AnswerStream {
 public:
  enum class Shown : std::uint8_t {
    at_once,
    at_end,  ///< while another answer is being written
    never,
  };

  /// tokenizer: outlives it.
  AnswerStream(const Tokenizer& tokenizer, Shown shown) : tokenizer_(tokenizer), shown_(shown) {}

  /// The next token. False where the user has asked to stop (a TokenFn).
  bool take(Token token);
  /// The answer has ended: what is left, and a line end.
  void finish();

 private:
  void show(const std::string& piece);

  const Tokenizer& tokenizer_;
  Shown shown_;
  Utf8Stream stream_;
  std::string held_;
};

}  // namespace topkv::cli
