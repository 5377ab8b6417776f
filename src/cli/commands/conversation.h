// A conversation over files as the model reads it: the texts of its chat template, turn by turn, in
// tokens. The files are the beginning of the first question: every template takes questions, and
// leaves those of earlier turns where they are.
#pragma once

#include <string>
#include <vector>

#include "topkv/chat_template.h"
#include "topkv/tokenizer.h"

namespace topkv::cli {

class Conversation {
 public:
  /// The tokenizer must outlive it. system: empty for no such message. variables: as of
  /// ChatTemplate::render.
  Conversation(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& system,
               std::string files, std::string variables = {});

  /// Tokens that come before the first question, whatever it is: with files those of the files, and
  /// what the template has before them. Empty without files.
  std::vector<Token> before_questions() const;

  /// Returns the tokens of a conversation with the same files that has this question alone.
  std::vector<Token> only(const std::string& question) const;

  /// Adds a question. The tokens of all up to where its answer begins.
  std::vector<Token> ask(const std::string& question);

  /// Takes the last question back, as if it had not been asked.
  void forget_question() { messages_.pop_back(); }

  /// How many of these tokens will be there after the next question, too: a template may move a
  /// system message to the last question.
  std::size_t lasting(const std::vector<Token>& asked) const;

  void answer(std::string text) { messages_.push_back({"assistant", std::move(text)}); }

 private:
  std::vector<Token> tokens_of(const std::vector<ChatMessage>& messages) const;

  ChatTemplate template_;
  const Tokenizer& tokenizer_;
  std::string files_;  // which the first question has in front
  std::string variables_;
  std::vector<ChatMessage> messages_;
};

}  // namespace topkv::cli
