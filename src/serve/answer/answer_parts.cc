#include "src/serve/answer/answer_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace topkv::serve {
namespace {

constexpr const char* white = " \t\r\n";

/// Bytes at the end of a text that are the beginning of a mark, less than all of it.
std::size_t overlap(std::string_view text, std::string_view mark) {
  std::size_t bytes = std::min(text.size(), mark.size() - 1);
  while (!text.ends_with(mark.substr(0, bytes))) --bytes;
  return bytes;
}

bool may_begin(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() ? mark.starts_with(text) : text.starts_with(mark);
}

// Of gpt-oss.
constexpr std::string_view channel_begin = "<|channel|>";
constexpr std::string_view message_begin = "<|message|>";
constexpr std::string_view next_begin = "<|start|>";
constexpr std::string_view recipient_begin = " to=";
constexpr std::string_view function_space = "functions.";
constexpr std::string_view message_ends[] = {"<|end|>", "<|call|>", "<|return|>"};
constexpr std::size_t longest_header = 1024;

}  // namespace

AnswerParts::AnswerParts(AnswerForm form, bool in_thought, Tools tools, bool one_call)
    : form_(std::move(form)),
      in_thought_(in_thought),
      tools_(std::move(tools)),
      one_call_(one_call) {
  if (form_.channels) state_ = State::header;
  if (tools_.empty()) form_.calls = AnswerForm::Calls::none;
  if (form_.calls == AnswerForm::Calls::tagged) {
    call_begin_ = "<tool_call>";
    call_end_ = "</tool_call>";
  } else if (form_.calls == AnswerForm::Calls::listed) {
    call_begin_ = "[TOOL_CALLS]";
  } else if (form_.calls == AnswerForm::Calls::object) {
    call_begin_ = "<|python_tag|>";
  }
}

AnswerDelta AnswerParts::push(std::string_view text) {
  AnswerDelta delta;
  held_ += text;
  while (step(delta)) {
  }
  return delta;
}

AnswerDelta AnswerParts::finish() {
  AnswerDelta delta;
  const auto rest = [&] { return take(held_.size()); };
  switch (state_) {
    case State::begin:
      if (!in_thought_) {
        delta.content = rest();
        break;
      }
      [[fallthrough]];
    case State::thought: {
      std::string left = rest();
      left.erase(left.find_last_not_of(white) + 1);
      give_reasoning(std::move(left), delta);
      break;
    }
    case State::content:
      delta.content = rest();
      break;
    case State::call:
      end_call(rest(), "", delta);
      break;
    case State::header:
      if (!held_.starts_with(channel_begin) && !held_.starts_with(next_begin))
        delta.content = rest();
      break;
    case State::message: {
      std::string left = rest();
      if (channel_ == Channel::reasoning) left.erase(left.find_last_not_of(white) + 1);
      give_to_channel(std::move(left), delta);
      end_message(delta);
      break;
    }
  }
  return delta;
}

bool AnswerParts::step(AnswerDelta& delta) {
  if (drop_white_) {
    const std::size_t text = held_.find_first_not_of(white);
    take(std::min(text, held_.size()));
    if (held_.empty()) return false;
    drop_white_ = false;
  }
  switch (state_) {
    case State::begin:
      return begin();
    case State::thought:
      return thought(delta);
    case State::content:
      return content(delta);
    case State::call:
      return call(delta);
    case State::header:
      return header(delta);
    case State::message:
      return message(delta);
  }
  return false;
}

/// Thinking begins an answer, or there is none.
bool AnswerParts::begin() {
  const std::size_t text = held_.find_first_not_of(white);
  if (!form_.think.empty() || form_.calls == AnswerForm::Calls::object) {
    if (text == held_.npos) return false;
    const std::string_view first = std::string_view(held_).substr(text);
    if (!form_.think.empty() && may_begin(first, form_.think)) {
      if (first.size() < form_.think.size()) return false;
      take(text + form_.think.size());
      drop_white_ = true;
      enter(State::thought);
      return true;
    }
    if (in_thought_) {
      drop_white_ = true;
      enter(State::thought);
      return true;
    }
    if (form_.calls == AnswerForm::Calls::object && first.starts_with('{')) {
      enter(State::call);
      return true;
    }
  }
  enter(State::content);
  return true;
}

bool AnswerParts::thought(AnswerDelta& delta) {
  const std::size_t at = find(form_.think_end);
  if (at == held_.npos) {
    give_reasoning(take_sure({form_.think_end}), delta);
    return false;
  }
  std::string text = take(at);
  text.erase(text.find_last_not_of(white) + 1);
  give_reasoning(std::move(text), delta);
  take(form_.think_end.size());
  drop_white_ = true;
  // A call of the form object may be behind it; thinking is not.
  form_.think.clear();
  in_thought_ = false;
  enter(State::begin);
  return true;
}

bool AnswerParts::content(AnswerDelta& delta) {
  if (call_begin_.empty()) {
    delta.content += take(held_.size());
    return false;
  }
  const std::size_t at = find(call_begin_);
  if (at == held_.npos) {
    delta.content += take_sure({call_begin_});
    return false;
  }
  const std::string text = take(at);
  const std::size_t end = text.find_last_not_of(white) + 1;
  delta.content += text.substr(0, end);
  before_call_ = text.substr(end);
  take(call_begin_.size());
  if (form_.calls != AnswerForm::Calls::object) before_call_ += call_begin_;
  enter(State::call);
  return true;
}

bool AnswerParts::call(AnswerDelta& delta) {
  if (call_end_.empty()) return false;  // up to the end of the answer
  const std::size_t at = find(call_end_);
  if (at == held_.npos) return false;
  const std::string text = take(at);
  take(call_end_.size());
  drop_white_ = end_call(text, call_end_, delta);
  enter(State::content);
  return true;
}

bool AnswerParts::end_call(const std::string& text, const std::string& end, AnswerDelta& delta) {
  std::vector<ToolCall> calls;
  if (form_.calls == AnswerForm::Calls::tagged) {
    if (std::optional<ToolCall> one = tagged_call(text, tools_)) calls.push_back(*std::move(one));
  } else if (form_.calls == AnswerForm::Calls::listed) {
    calls = listed_calls(text);
  } else {
    calls = object_calls(text, tools_);
  }
  const bool found = !calls.empty();
  if (found)
    give_calls(std::move(calls), delta);
  else
    delta.content += before_call_ + text + end;
  before_call_.clear();
  return found;
}

bool AnswerParts::header(AnswerDelta& delta) {
  if (held_.empty()) return false;
  if (held_.size() > longest_header ||
      (!may_begin(held_, channel_begin) && !may_begin(held_, next_begin) &&
       !may_begin(held_, recipient_begin))) {
    channel_ = Channel::content;  // no channel is named
    enter(State::message);
    return true;
  }
  const std::size_t at = find(message_begin);
  if (at == held_.npos) return false;
  const std::string header = take(at);
  take(message_begin.size());
  open_channel(header, delta);
  enter(State::message);
  return true;
}

void AnswerParts::open_channel(const std::string& header, AnswerDelta& delta) {
  const auto word_behind = [&](std::string_view mark) -> std::string {
    const std::size_t at = header.find(mark);
    if (at == header.npos) return {};
    const std::size_t begin = at + mark.size();
    return header.substr(begin, header.find_first_of(" \t\r\n<", begin) - begin);
  };
  const std::string recipient = word_behind("to=");
  channel_ = Channel::content;
  if (recipient.starts_with(function_space) && !tools_.empty()) {
    channel_ = Channel::call;
    call_name_ = recipient.substr(function_space.size());
  } else if (word_behind(channel_begin) == "analysis") {
    channel_ = Channel::reasoning;
    if (reasoned_) delta.reasoning += "\n";
  }
}

void AnswerParts::give_to_channel(std::string text, AnswerDelta& delta) {
  if (channel_ == Channel::call)
    arguments_ += text;
  else if (channel_ == Channel::reasoning)
    give_reasoning(std::move(text), delta);
  else
    delta.content += text;
}

bool AnswerParts::message(AnswerDelta& delta) {
  constexpr std::string_view any_end = "<|";
  std::size_t at = find(any_end);
  while (at != held_.npos) {
    const std::string_view mark = std::string_view(held_).substr(at);
    const auto end = std::ranges::find_if(
        message_ends, [&](std::string_view one) { return mark.starts_with(one); });
    const bool next = mark.starts_with(next_begin);
    if (end != std::end(message_ends) || next) {
      std::string text = take(at);
      give_to_channel(std::move(text), delta);
      if (!next) take(end->size());
      end_message(delta);
      enter(State::header);
      return true;
    }
    const bool may_be =
        may_begin(mark, next_begin) || std::ranges::any_of(message_ends, [&](std::string_view one) {
          return may_begin(mark, one);
        });
    if (may_be) break;
    looked_ = at + any_end.size();
    at = find(any_end);
  }
  std::string text = at == held_.npos ? take_sure({any_end}) : take(at);
  give_to_channel(std::move(text), delta);
  return false;
}

void AnswerParts::end_message(AnswerDelta& delta) {
  if (channel_ != Channel::call) return;
  if (std::optional<std::string> arguments = arguments_of(arguments_))
    give_calls({{std::exchange(call_name_, {}), *std::move(arguments)}}, delta);
  else
    delta.content += arguments_;
  arguments_.clear();
  channel_ = Channel::content;
}

void AnswerParts::give_reasoning(std::string text, AnswerDelta& delta) {
  reasoned_ = reasoned_ || !text.empty();
  delta.reasoning += text;
}

void AnswerParts::give_calls(std::vector<ToolCall> calls, AnswerDelta& delta) {
  for (ToolCall& call : calls) {
    if (one_call_ && called_) return;
    called_ = true;
    delta.calls.push_back(std::move(call));
  }
}

std::size_t AnswerParts::find(std::string_view mark) {
  const std::size_t at = held_.find(mark, looked_);
  if (at == held_.npos) looked_ = held_.size() - std::min(held_.size(), mark.size() - 1);
  return at;
}

std::string AnswerParts::take(std::size_t bytes) {
  std::string text = held_.substr(0, bytes);
  held_.erase(0, bytes);
  looked_ -= std::min(looked_, bytes);
  return text;
}

std::string AnswerParts::take_sure(const std::vector<std::string_view>& marks) {
  std::size_t kept = 0;
  for (const std::string_view mark : marks) kept = std::max(kept, overlap(held_, mark));
  std::size_t sure = held_.size() - kept;
  const std::size_t last = std::string_view(held_).substr(0, sure).find_last_not_of(white);
  sure = last == held_.npos ? 0 : last + 1;
  return take(sure);
}

void AnswerParts::enter(State state) {
  state_ = state;
  looked_ = 0;
}

AnswerDelta delta_of_event(AnswerParts& parts, const Event& event) {
  AnswerDelta delta = parts.push(event.text);
  if (event.finish.empty()) return delta;
  AnswerDelta rest = parts.finish();
  delta.content += rest.content;
  delta.reasoning += rest.reasoning;
  delta.calls.insert(delta.calls.end(), rest.calls.begin(), rest.calls.end());
  return delta;
}

}  // namespace topkv::serve
