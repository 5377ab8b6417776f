// What requests for answers have in common.
#pragma once

#include <string_view>

#include "src/serve/request/fields.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Reads how many tokens an answer has at most. -1 sets AnswerOptions::unlimited. Throws Problem
/// (400).
std::optional<std::int64_t> read_max_tokens(Fields& fields, std::string_view key,
                                            std::int64_t fewest, AnswerOptions& options);

/// Reads "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "stop",
/// and the penalty of repetition, under the name that the API has for it. Throws Problem (400).
void take_sampling(Fields& fields, AnswerOptions& options, std::string_view repetition_penalty);

/// Reads "seed". Throws Problem (400).
void take_seed(Fields& fields, AnswerOptions& options);

/// Reads "logprobs" and "top_logprobs" as chats have them: a flag and a number. Throws Problem
/// (400).
void take_chat_logprobs(Fields& fields, AnswerOptions& options);

/// Reads the fields that both kinds of requests have. fewest: tokens that max_tokens may ask for.
/// Throws Problem (400).
void take_common(Fields& fields, AnswerRequest& request, std::int64_t fewest = 1);

}  // namespace topkv::serve
