// What requests for completions and for chats have in common.
#pragma once

#include "src/serve/request/fields.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Reads how many tokens an answer has at most. -1 sets AnswerOptions::unlimited. Throws Problem
/// (400).
std::optional<std::int64_t> read_max_tokens(Fields& fields, std::string_view key,
                                            std::int64_t fewest, AnswerOptions& options);

/// Reads the fields that both kinds of requests have. fewest: tokens that max_tokens may ask for.
/// Throws Problem (400).
void take_common(Fields& fields, AnswerRequest& request, std::int64_t fewest = 1);

}  // namespace topkv::serve
