#include "src/cli/commands/conversation.h"

#include <algorithm>
#include <utility>

#include "src/core/text/common_tokens.h"

namespace topkv::cli {

Conversation::Conversation(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& system,
                           std::string files, std::string variables)
    : template_(std::move(chat)),
      tokenizer_(tokenizer),
      files_(std::move(files)),
      variables_(std::move(variables)) {
  if (!system.empty()) messages_.push_back({"system", system});
}

std::vector<Token> Conversation::before_questions() const {
  if (files_.empty()) return {};
  std::vector<Token> same = only("a");
  // Nothing in common with it, and of the kinds of characters that join to what is before them.
  for (const char* question : {"?", " b", "\nc", "1"}) {
    same.resize(common_tokens(same, only(question)));
  }
  return same;
}

std::vector<Token> Conversation::only(const std::string& question) const {
  std::vector<ChatMessage> messages;
  if (!messages_.empty() && messages_.front().role == "system")
    messages.push_back(messages_.front());
  messages.push_back({"user", files_ + question});
  return tokens_of(messages);
}

std::vector<Token> Conversation::ask(const std::string& question) {
  const bool first = std::ranges::none_of(
      messages_, [](const ChatMessage& message) { return message.role == "user"; });
  messages_.push_back({"user", first ? files_ + question : question});
  return tokens_of(messages_);
}

std::size_t Conversation::lasting(const std::vector<Token>& asked) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"assistant", "a"});
  messages.push_back({"user", "b"});
  return common_tokens(asked, tokens_of(messages));
}

// Special tokens, a BOS among them, are in the text already.
std::vector<Token> Conversation::tokens_of(const std::vector<ChatMessage>& messages) const {
  return tokenizer_.encode(template_.render(messages, true, variables_));
}

}  // namespace topkv::cli
