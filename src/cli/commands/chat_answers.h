// What commands share that answer in a chat template: its variables, and answers of several parts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/cli/commands/answer_stream.h"
#include "src/serve/answer/answer_form.h"
#include "topkv/chat_template.h"
#include "topkv/generate.h"
#include "topkv/tokenizer.h"

namespace topkv::cli {

/// Variables of the chat template, each NAME=JSON.
struct TemplateFlags {
  std::vector<std::string> variables;
};

void visit_flags(TemplateFlags& flags, auto& visit) { visit("--template-arg", flags.variables); }

/// The variables as ChatTemplate::render takes them. Throws UsageError.
std::string template_variables(const TemplateFlags& flags);

/// Takes answers apart. The tokenizer outlives it.
class ChatAnswers {
 public:
  ChatAnswers(const ChatTemplate& chat, const Tokenizer& tokenizer);

  /// Sets the special tokens that the text of answers has.
  void prepare(GenerateOptions& options) const;
  /// A stream divides its answer to this prompt. hush: thinking is not shown.
  void divide(AnswerStream& stream, std::span<const Token> prompt, bool hush) const;
  /// Whether answers are content alone.
  bool plain() const { return form_.plain(); }

 private:
  serve::AnswerForm form_;
  const Tokenizer* tokenizer_;
};

}  // namespace topkv::cli
