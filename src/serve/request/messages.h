// The conversation of a chat's request: messages, tools and what else the chat template sees.
#pragma once

#include <string_view>

#include "src/serve/request/fields.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Reads the fields "messages", "tools", "tool_choice", "parallel_tool_calls",
/// "chat_template_kwargs" and "reasoning_effort". body: the text of the fields, whose order of keys
/// counts in tools. Throws Problem (400), which names the field.
void take_conversation(Fields& fields, std::string_view body, AnswerRequest& request);

}  // namespace topkv::serve
