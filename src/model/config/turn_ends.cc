#include "src/model/config/turn_ends.h"

#include <array>
#include <string_view>

namespace topkv {
namespace {

// llama.cpp's list, but for tokens of models that topkv does not run.
constexpr std::array<std::string_view, 7> names = {
    "<|eot_id|>",    "<|im_end|>",      "<|end|>",   "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"};

// A vocabulary with the first has channels within a turn (gpt-oss), each of which ends with the
// second.
constexpr std::string_view end_of_channels = "<|return|>";
constexpr std::string_view end_of_channel = "<|end|>";

bool has_special(const Tokenizer& tokenizer, std::string_view name) {
  const Token token = tokenizer.find(name);
  return token >= 0 && tokenizer.bytes_of_token(token).empty();
}

}  // namespace

std::vector<Token> turn_ends(const Tokenizer& tokenizer) {
  const bool has_channels = has_special(tokenizer, end_of_channels);
  std::vector<Token> ends;
  for (const std::string_view name : names) {
    if (has_channels && name == end_of_channel) continue;
    if (has_special(tokenizer, name)) ends.push_back(tokenizer.find(name));
  }
  return ends;
}

}  // namespace topkv
