// What the targets of tokenizers do with one that was read.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"
#include "topkv/tokenizer.h"

namespace topkv::fuzz {

inline void use_tokenizer(const std::filesystem::path& file) {
  const Tokenizer tokenizer = Tokenizer::load(file);
  const std::string long_word(70, 'x');
  for (const std::string_view text :
       {std::string_view("The 12 caf\xc3\xa9s\n\tdon't \xff <s> \xe8\xaa\x9e"), std::string_view(),
        std::string_view("  aaaa bb"), std::string_view(long_word)}) {
    const std::vector<Token> tokens = tokenizer.encode(text, true);
    require(std::all_of(tokens.begin(), tokens.end(),
                        [&](Token token) { return token >= 0 && token < tokenizer.vocab_size(); }),
            "a token that is none");
    tokenizer.decode(tokens);
    tokenizer.left_out(text);
  }
  tokenizer.bytes_of_token(-1);
  tokenizer.content_of_token(-1);
  tokenizer.bytes_of_token(static_cast<Token>(tokenizer.vocab_size()));
  tokenizer.content_of_token(static_cast<Token>(tokenizer.vocab_size()));
}

}  // namespace topkv::fuzz
