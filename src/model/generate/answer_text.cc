#include "src/model/generate/answer_text.h"

#include <algorithm>
#include <cstdint>
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

// A special token in the held text: a first byte and the id in octal digits, all of them bytes that
// no UTF-8 has, so that no stop text is found within.
constexpr char mark_begin = '\xfe';
constexpr unsigned char mark_digit = 0xf5;
constexpr std::size_t mark_digits = 11;  // of 31 bits

std::string mark_of(Token token) {
  std::string mark(1 + mark_digits, mark_begin);
  auto rest = static_cast<std::uint32_t>(token);
  for (std::size_t i = mark_digits; i > 0; --i, rest /= 8)
    mark[i] = static_cast<char>(mark_digit + rest % 8);
  return mark;
}

/// REQUIRES: a mark begins there.
Token token_of_mark(std::string_view mark) {
  std::uint32_t token = 0;
  for (const char digit : mark.substr(1, mark_digits))
    token = token * 8 + (static_cast<unsigned char>(digit) - mark_digit);
  return static_cast<Token>(token);
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::string AnswerText::push(Token token) {
  const std::string bytes = tokenizer_->bytes_of_token(token);
  if (bytes.empty())
    push_special(token);
  else
    held_ += characters_.push(bytes);
  return give();
}

void AnswerText::push_special(Token token) {
  const std::string content = tokenizer_->content_of_token(token);
  if (content.empty()) return;
  const std::string mark = mark_of(token);
  bool counts = std::ranges::count(spelled_, token) > 0;
  for (std::string& form : forms_) {
    replace_all(form, content, mark);
    counts = counts || form.find(mark) != form.npos;
  }
  if (!counts) return;
  held_ += characters_.finish();
  held_ += mark;
}

std::string AnswerText::finish() {
  if (stopped_) return {};
  held_ += characters_.finish();
  std::string text = give();
  if (!stopped_) text += shown(std::exchange(held_, {}));
  return text;
}

std::string AnswerText::give() {
  std::size_t end = std::string::npos;
  for (const std::string& stop : stop_) end = std::min(end, held_.find(stop));
  for (const std::string& form : forms_) end = std::min(end, held_.find(form));
  stopped_ = end != std::string::npos;
  if (!stopped_) {
    std::size_t kept = 0;
    for (const std::string& stop : stop_) kept = std::max(kept, overlap(held_, stop));
    for (const std::string& form : forms_) kept = std::max(kept, overlap(held_, form));
    end = held_.size() - kept;
  }
  std::string text = shown(held_.substr(0, end));
  held_.erase(0, end);
  return text;
}

std::string AnswerText::shown(const std::string& part) const {
  std::string text;
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t mark = std::min(part.find(mark_begin, at), part.size());
    text.append(part, at, mark - at);
    at = mark;
    if (mark == part.size()) break;
    const Token token = token_of_mark(std::string_view(part).substr(mark));
    if (std::ranges::count(spelled_, token) > 0) text += tokenizer_->content_of_token(token);
    at += 1 + mark_digits;
  }
  return text;
}

}  // namespace topkv
