#include "src/model/answer_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace topkv {
namespace {

/// Bytes at the end of a text that are the beginning of another, less than all of it.
std::size_t overlap(std::string_view text, std::string_view with) {
  std::size_t bytes = std::min(text.size(), with.size() - 1);
  while (!text.ends_with(with.substr(0, bytes))) --bytes;
  return bytes;
}

}  // namespace

std::string AnswerText::push(Token token) {
  held_ += characters_.push(tokenizer_->bytes_of_token(token));
  return give();
}

std::string AnswerText::finish() {
  if (stopped_) return {};
  held_ += characters_.finish();
  std::string text = give();
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

std::string AnswerText::give() {
  std::size_t end = std::string::npos;
  for (const std::string& stop : stop_) end = std::min(end, held_.find(stop));
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    std::size_t kept = 0;
    for (const std::string& stop : stop_) kept = std::max(kept, overlap(held_, stop));
    end = held_.size() - kept;
  }
  std::string text = held_.substr(0, end);
  held_.erase(0, end);
  return text;
}

}  // namespace topkv
