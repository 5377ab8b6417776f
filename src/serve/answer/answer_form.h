// How a model writes its answers in a chat: where its thinking ends, how it calls tools. Told by
// its chat template, which writes earlier answers in the same way.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "topkv/tokenizer.h"

namespace topkv::serve {

struct AnswerForm {
  /// How calls of tools are written.
  enum class Calls : std::uint8_t {
    none,    ///< in no way that is known here: they stay content
    tagged,  ///< <tool_call>…</tool_call> around JSON or, as Qwen3-Coder, <function=…>: Qwen,
             ///< SmolLM3
    listed,  ///< [TOOL_CALLS] before a list or before NAME[ARGS]JSON: Mistral
    object,  ///< the whole answer is a JSON object with name and parameters: Llama 3
  };

  bool channels = false;   ///< <|channel|>NAME<|message|>…: gpt-oss, calls included
  std::string think = {};  ///< what thinking begins with; empty: no thinking is known
  std::string think_end = {};
  Calls calls = Calls::none;

  /// Whether an answer has parts at all.
  bool plain() const { return !channels && think.empty() && calls == Calls::none; }
  /// The special tokens that the parts are found by, for GenerateOptions::spelled. tools: those of
  /// calls, too.
  std::vector<Token> spelled(const Tokenizer& tokenizer, bool tools) const;
  /// Whether a prompt ends where the template has begun the answer's thinking.
  bool ends_in_thought(const Tokenizer& tokenizer, std::span<const Token> prompt) const;
};

AnswerForm answer_form(const std::string& template_source);

}  // namespace topkv::serve
