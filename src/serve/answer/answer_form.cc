#include "src/serve/answer/answer_form.h"

#include <algorithm>

namespace topkv::serve {

AnswerForm answer_form(const std::string& source) {
  const auto has = [&](const char* text) { return source.find(text) != source.npos; };
  AnswerForm form;
  if (has("<|channel|>") && has("<|message|>")) {
    form.channels = true;
    return form;
  }
  if (has("</think>")) {
    form.think = "<think>";
    form.think_end = "</think>";
  } else if (has("[/THINK]")) {
    form.think = "[THINK]";
    form.think_end = "[/THINK]";
  }
  if (has("[TOOL_CALLS]"))
    form.calls = AnswerForm::Calls::listed;
  else if (has("<tool_call>"))
    form.calls = AnswerForm::Calls::tagged;
  else if (has("<|python_tag|>") || (has("ipython") && has("\"parameters\"")))
    form.calls = AnswerForm::Calls::object;
  return form;
}

std::vector<Token> AnswerForm::spelled(const Tokenizer& tokenizer, bool tools) const {
  std::vector<std::string> marks;
  if (channels)
    marks = {"<|start|>", "<|channel|>", "<|message|>",  "<|end|>",
             "<|call|>",  "<|return|>",  "<|constrain|>"};
  if (!think.empty()) marks = {think, think_end};
  if (tools && calls == Calls::tagged) marks.insert(marks.end(), {"<tool_call>", "</tool_call>"});
  if (tools && calls == Calls::listed)
    marks.insert(marks.end(), {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
  if (tools && calls == Calls::object) marks.push_back("<|python_tag|>");
  std::vector<Token> tokens;
  for (const std::string& mark : marks) {
    const Token token = tokenizer.find(mark);
    if (token >= 0 && tokenizer.bytes_of_token(token).empty()) tokens.push_back(token);
  }
  return tokens;
}

bool AnswerForm::ends_in_thought(const Tokenizer& tokenizer, std::span<const Token> prompt) const {
  if (think.empty()) return false;
  std::string end;
  constexpr std::size_t enough =
      16;  // tokens: the mark may be several, and a line end is behind it
  for (const Token token : prompt.last(std::min(prompt.size(), enough))) {
    const std::string bytes = tokenizer.bytes_of_token(token);
    end += bytes.empty() ? tokenizer.content_of_token(token) : bytes;
  }
  end.erase(end.find_last_not_of(" \t\r\n") + 1);
  return end.ends_with(think);
}

}  // namespace topkv::serve
