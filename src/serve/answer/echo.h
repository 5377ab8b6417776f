// Where a prompt begins within the tokens that are read for it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "topkv/tokenizer.h"

namespace topkv::serve {

/// How many of the first tokens of a text lie wholly within a text that it begins with.
std::int64_t tokens_within(const Tokenizer& tokenizer, std::span<const Token> tokens,
                           std::string_view beginning);

}  // namespace topkv::serve
