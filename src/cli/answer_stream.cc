#include "src/cli/answer_stream.h"

#include <cstdio>

#include "src/cli/interrupt.h"

namespace topkv::cli {
namespace {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

bool AnswerStream::take(Token token) {
  show(stream_.push(tokenizer_.bytes_of_token(token)));
  return !interrupted();
}

void AnswerStream::finish() {
  show(stream_.finish() + "\n");
  if (shown_ == Shown::at_end) print(held_);
}

void AnswerStream::show(const std::string& piece) {
  if (shown_ == Shown::at_once) print(piece);
  if (shown_ == Shown::at_end) held_ += piece;
}

}  // namespace topkv::cli
