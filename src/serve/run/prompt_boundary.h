// Where a context that is kept in a file ends, and how a prompt goes on from there: the tokens of
// context and prompt are then those of both as one text, as if they had been read together.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topkv/chat_template.h"
#include "topkv/context_file.h"
#include "topkv/tokenizer.h"

namespace topkv::serve {

struct KeptPrompt {
  std::vector<Token> tokens;  ///< of the context
  ContextEnd end;
};

/// Called before each reading of a text, of which there are several; what it throws ends the work.
using Between = std::function<void()>;

/// Of a text that prompts continue.
KeptPrompt kept_prompt(const Tokenizer& tokenizer, const std::string& text,
                       const Between& between = {});

/// Of a text that questions are asked of, in the chat template. Throws Unsupported where the
/// template does more with the text than put it before the question.
KeptPrompt kept_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat,
                       const std::string& system, const std::string& text,
                       const Between& between = {});

/// Throws Unsupported where that can be told of the template without a text, and what
/// ChatTemplate::render throws.
void check_keeps_texts(const ChatTemplate& chat, const std::string& system);

/// The tokens that continue such a context. chat: with ContextEnd::chat. variables: as of
/// ChatTemplate::render.
std::vector<Token> tokens_of_prompt(const Tokenizer& tokenizer, const ContextEnd& end,
                                    const std::optional<ChatTemplate>& chat,
                                    const std::string& prompt, const std::string& variables = {});

/// The tokens of a conversation whose first question is asked of the context's text. messages: with
/// the system message that the context was read with, or without it. variables: as of
/// ChatTemplate::render. REQUIRES: end.chat. Throws
/// InvalidArgument when there is no question in them, when they have another system message, and
/// when the template has something else before the text for them; what ChatTemplate::render throws,
/// too.
std::vector<Token> tokens_of_conversation(const Tokenizer& tokenizer, const ContextEnd& end,
                                          const ChatTemplate& chat,
                                          std::span<const ChatMessage> messages,
                                          const std::string& variables = {});

}  // namespace topkv::serve
