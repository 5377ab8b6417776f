// "input" of the Responses API: a text, or items of a conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "src/serve/request/fields.h"
#include "topkv/chat_template.h"

namespace topkv::serve {

/// Reads the field "input" behind the messages that are there. Thinking, words and calls of tools
/// that follow each other become one message of the assistant. ordered: the body with the order of
/// its keys. Throws Problem (400).
void take_responses_input(Fields& fields, const nlohmann::ordered_json& ordered,
                          std::vector<ChatMessage>& messages);

}  // namespace topkv::serve
