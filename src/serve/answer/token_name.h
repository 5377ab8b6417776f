// How tokens are spelled for clients, which tell them apart by text.
#pragma once

#include <string>

#include "topkv/tokenizer.h"

namespace topkv::serve {

/// A token's name in log-probabilities:
///  - its bytes, when they are UTF-8;
///  - "bytes:\xe2\x82", with a backslash, when they are a part of a character (OpenAI's form);
///  - its content, such as "<|im_end|>", when it is special and has no bytes;
///  - "token_id:7", when the id is no token: vocabularies are padded.
/// Two tokens have one name only when their bytes are equal, or when the bytes of one spell the
/// name of the other.
std::string token_name(const Tokenizer& tokenizer, Token token);

}  // namespace topkv::serve
