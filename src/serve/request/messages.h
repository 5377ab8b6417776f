// The conversation of a chat's request: messages, tools and what else the chat template sees.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/serve/request/fields.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Reads a body whose order of keys counts. Throws Problem (400, "invalid_json").
nlohmann::ordered_json parse_ordered_body(std::string_view body);

/// Reads the arguments of a call, for templates, which want the object: an object, or as most
/// clients send them, the text of one. ordered: the same with the order of its keys. name: of the
/// field. Throws Problem (400).
nlohmann::ordered_json arguments_of_call(const BodyJson& given,
                                         const nlohmann::ordered_json& ordered,
                                         const std::string& name);

/// Adds what an assistant thought to the fields of its message, under both names that templates
/// have for it. An empty text adds nothing.
void add_reasoning(const std::string& reasoning, nlohmann::ordered_json& fields);

/// Whose names the fields of messages have.
enum class MessageForm : std::uint8_t { openai, ollama };

/// Reads the fields "messages", "tools", "tool_choice", "parallel_tool_calls",
/// "chat_template_kwargs" and "reasoning_effort". body: the text of the fields, whose order of keys
/// counts in tools. Throws Problem (400), which names the field.
void take_conversation(Fields& fields, std::string_view body, AnswerRequest& request);

/// Reads the fields "messages" and "tools" in Ollama's form. There may be no messages. body: the
/// text of the fields. Throws Problem (400), which names the field.
void take_ollama_conversation(Fields& fields, std::string_view body, AnswerRequest& request);

}  // namespace topkv::serve
