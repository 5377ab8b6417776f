// The parts of an answer in a chat, as its text comes: thinking, content and calls of tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/serve/answer/answer.h"
#include "src/serve/answer/answer_form.h"
#include "src/serve/request/tool_calls.h"

namespace topkv::serve {

/// What more of an answer's text gave.
struct AnswerDelta {
  std::string content = {};
  std::string reasoning = {};
  std::vector<ToolCall> calls = {};

  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

/// One thread.
class AnswerParts {
 public:
  /// in_thought: the prompt ends where thinking has begun. tools: a list; where it is empty no
  /// calls are looked for. one_call: calls behind the first are left out.
  AnswerParts(AnswerForm form, bool in_thought, Tools tools, bool one_call = false);

  /// text: more of the answer, in which the tokens of AnswerForm::spelled are spelled. What may yet
  /// become a mark, and white space before one, is held back.
  AnswerDelta push(std::string_view text);
  /// The rest: no more text comes. A call that is not whole, or is none, is content.
  AnswerDelta finish();
  /// Whether a tool was called.
  bool called() const { return called_; }

 private:
  enum class State : std::uint8_t { begin, thought, content, call, header, message };
  enum class Channel : std::uint8_t { content, reasoning, call };

  bool step(AnswerDelta& delta);
  bool begin();
  bool thought(AnswerDelta& delta);
  bool content(AnswerDelta& delta);
  bool call(AnswerDelta& delta);
  bool header(AnswerDelta& delta);
  bool message(AnswerDelta& delta);
  void open_channel(const std::string& header, AnswerDelta& delta);
  void end_message(AnswerDelta& delta);
  /// Ends a call of a form other than channels, with the mark `end` or without one. False: it is
  /// none, and is content as it came.
  bool end_call(const std::string& text, const std::string& end, AnswerDelta& delta);
  void give_reasoning(std::string text, AnswerDelta& delta);
  /// Adds text of a message to the part of the answer that its channel stands for.
  void give_to_channel(std::string text, AnswerDelta& delta);
  void give_calls(std::vector<ToolCall> calls, AnswerDelta& delta);
  /// Where a mark begins in the held text, npos: nowhere. Looks at no byte twice.
  std::size_t find(std::string_view mark);
  /// Takes bytes from the front of the held text.
  std::string take(std::size_t bytes);
  /// Takes all that cannot be the beginning of a mark, nor white space before one.
  std::string take_sure(const std::vector<std::string_view>& marks);
  void enter(State state);

  AnswerForm form_;
  bool in_thought_;
  Tools tools_;
  bool one_call_;
  std::string call_begin_, call_end_;  // of the form; empty: none
  State state_ = State::begin;
  Channel channel_ = Channel::content;
  std::string call_name_, arguments_;  // of a channel that calls
  std::string before_call_;            // white space and the mark, until the call is known as one
  std::string held_;
  std::size_t looked_ = 0;   // bytes of it in which no mark begins that was looked for
  bool drop_white_ = false;  // at the front
  bool reasoned_ = false;
  bool called_ = false;
};

/// What an event adds to an answer: with its end, also the rest of what was held back.
AnswerDelta delta_of_event(AnswerParts& parts, const Event& event);

}  // namespace topkv::serve
