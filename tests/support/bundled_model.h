// The bundled checkpoint, and a text with one fact in it to ask for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace test {

inline topkv::Model bundled(const topkv::Device& device) {
  return topkv::Model::load(TOPKV_SOURCE_DIR "/models/needle-14m", device);
}

inline const std::string answer = "4512378";
inline constexpr std::int64_t answer_tokens = 8;

/// At least `tokens` tokens.
inline std::vector<topkv::Token> text_with_fact(const topkv::Model& model, std::int64_t tokens) {
  const topkv::Tokenizer& tokenizer = model.tokenizer();
  const auto filler = tokenizer.encode(" The grass is green. The sky is blue. The sun is yellow.");
  std::vector<topkv::Token> out = {model.config().bos};
  const auto add = [&](const std::vector<topkv::Token>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  while (static_cast<std::int64_t>(out.size()) < tokens / 3) add(filler);
  add(tokenizer.encode(" One of the special magic numbers for quiet-river is: " + answer + "."));
  while (static_cast<std::int64_t>(out.size()) < tokens) add(filler);
  return out;
}

inline std::vector<topkv::Token> question(const topkv::Model& model) {
  return model.tokenizer().encode(
      "\nWhat is the special magic number for quiet-river mentioned in the provided text? The "
      "special magic number for quiet-river mentioned in the provided text is");
}

}  // namespace test
