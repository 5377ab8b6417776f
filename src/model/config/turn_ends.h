// The tokens that end a turn of a conversation, whatever a model's files say of its ends: one rule
// for model directories and GGUF files.
#pragma once

#include <vector>

#include "topkv/tokenizer.h"

namespace topkv {

/// Special tokens of the tokenizer that are known to end a turn or a text by what they are called,
/// such as "<|im_end|>", in the order of an own list. A template's turns end with one of them where
/// the eos_token_id of many files names another.
std::vector<Token> turn_ends(const Tokenizer& tokenizer);

}  // namespace topkv
