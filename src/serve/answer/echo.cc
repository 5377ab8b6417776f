#include "src/serve/answer/echo.h"

#include <string>

namespace topkv::serve {

std::int64_t tokens_within(const Tokenizer& tokenizer, std::span<const Token> tokens,
                           std::string_view beginning) {
  if (beginning.empty()) return 0;
  std::size_t left = beginning.size();
  std::int64_t within = 0;
  for (const Token token : tokens) {
    std::string bytes = tokenizer.bytes_of_token(token);
    if (bytes.empty()) bytes = tokenizer.content_of_token(token);  // the text spelled it
    // Some tokenizers put a space before a text.
    const bool added = within == 0 && bytes.starts_with(' ') && !beginning.starts_with(' ');
    const std::size_t size = bytes.size() - (added ? 1 : 0);
    if (size > left) break;
    left -= size;
    ++within;
    if (left == 0) break;
  }
  return within;
}

}  // namespace topkv::serve
