// What requests for completions and for chats have in common.
#pragma once

#include "src/serve/fields.h"
#include "src/serve/request.h"

namespace topkv::serve {

/// Reads the fields that both kinds of requests have. fewest: tokens that max_tokens may ask for.
/// Throws Problem (400).
void take_common(Fields& fields, AnswerRequest& request, std::int64_t fewest = 1);

}  // namespace topkv::serve
