#include "src/serve/answer/token_name.h"

#include <fmt/format.h>

#include "src/core/text/utf8.h"

namespace topkv::serve {

std::string token_name(const Tokenizer& tokenizer, Token token) {
  const std::string bytes = tokenizer.bytes_of_token(token);
  if (bytes.empty()) {
    std::string content = tokenizer.content_of_token(token);
    return content.empty() ? fmt::format("token_id:{}", token) : content;
  }
  if (valid_utf8_bytes(bytes) == bytes.size()) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

}  // namespace topkv::serve
