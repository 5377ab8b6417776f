#include "src/serve/request/responses_input.h"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

#include "src/serve/request/json_text.h"
#include "src/serve/request/messages.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

/// A text, or parts of one.
std::string text_of_parts(Fields& item, std::string_view key, const std::string& of) {
  const std::string name = fmt::format("{}.{}", of, key);
  const BodyJson* value = item.find(key);
  if (value == nullptr)
    throw Problem(400, fmt::format("{}: {} is missing", request_body, name), name);
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) item.refuse(key, *value, "a string, or parts of text");
  std::string text;
  for (std::size_t i = 0; i < value->size(); ++i) {
    Fields part((*value)[i], fmt::format("{}[{}]", name, i));
    part.only("type", {"input_text", "output_text", "reasoning_text", "text"});
    text += part.needed_text("text");
    for (const char* unused : {"annotations", "logprobs"}) part.find(unused);
    part.done();
  }
  return text;
}

/// The messages of items, of which some become one.
class Conversation {
 public:
  explicit Conversation(std::vector<ChatMessage>& messages) : messages_(messages) {}

  void take(const BodyJson& given, const nlohmann::ordered_json& ordered, const std::string& name) {
    Fields item(given, name);
    const std::string type = item.text("type").value_or("message");
    for (const char* key : {"id", "status"}) item.text(key);
    if (type == "message")
      take_message(item, name);
    else if (type == "reasoning")
      take_reasoning(item, name);
    else if (type == "function_call")
      take_call(item, ordered, name);
    else if (type == "function_call_output")
      take_output(item, name);
    else
      item.refuse("type", given["type"],
                  "message, reasoning, function_call or function_call_output");
    item.done();
  }

  /// Ends the message of the assistant that items are added to.
  void close() {
    if (!open_) return;
    add_reasoning(reasoning_, fields_);
    if (!calls_.empty()) fields_["tool_calls"] = std::move(calls_);
    messages_.push_back({.role = "assistant",
                         .content = std::move(content_),
                         .fields = fields_.empty() ? "" : json_text(fields_)});
    open_ = false;
    content_.clear();
    reasoning_.clear();
    fields_ = calls_ = nullptr;
  }

 private:
  void take_message(Fields& item, const std::string& name) {
    const std::string role = item.needed_text("role");
    std::string content = text_of_parts(item, "content", name);
    item.find("phase");
    // Words behind calls, or behind other words, are another message.
    if (role != "assistant" || !content_.empty() || !calls_.empty()) close();
    if (role != "assistant") {
      messages_.push_back({role, std::move(content)});
      return;
    }
    open_ = true;
    content_ = std::move(content);
  }

  void take_reasoning(Fields& item, const std::string& name) {
    item.find("summary");
    item.find("encrypted_content");
    if (item.find("content") == nullptr) return;
    std::string text = text_of_parts(item, "content", name);
    if (!content_.empty() || !calls_.empty()) close();
    open_ = true;
    reasoning_ += text;
  }

  void take_call(Fields& item, const nlohmann::ordered_json& ordered, const std::string& name) {
    nlohmann::ordered_json call;
    call["id"] = item.needed_text("call_id");
    call["type"] = "function";
    call["function"]["name"] = item.needed_text("name");
    const BodyJson* arguments = item.find("arguments");
    if (arguments == nullptr)
      throw Problem(400, fmt::format("{}: {}.arguments is missing", request_body, name),
                    name + ".arguments");
    call["function"]["arguments"] =
        arguments_of_call(*arguments, ordered["arguments"], name + ".arguments");
    open_ = true;
    calls_.push_back(std::move(call));
  }

  void take_output(Fields& item, const std::string& name) {
    close();
    const nlohmann::ordered_json fields = {{"tool_call_id", item.needed_text("call_id")}};
    messages_.push_back({.role = "tool",
                         .content = text_of_parts(item, "output", name),
                         .fields = json_text(fields)});
  }

  std::vector<ChatMessage>& messages_;
  bool open_ = false;
  std::string content_, reasoning_;
  nlohmann::ordered_json fields_, calls_;
};

}  // namespace

void take_responses_input(Fields& fields, const nlohmann::ordered_json& ordered,
                          std::vector<ChatMessage>& messages) {
  const BodyJson* input = fields.find("input");
  if (input == nullptr)
    throw Problem(400, fmt::format("{}: input is missing", request_body), "input");
  if (input->is_string()) {
    messages.push_back({"user", input->get<std::string>()});
    return;
  }
  if (!input->is_array() || input->empty() || std::ssize(*input) > max_messages)
    fields.refuse("input", *input, fmt::format("a string, or 1 to {} items", max_messages));
  Conversation conversation(messages);
  for (std::size_t i = 0; i < input->size(); ++i)
    conversation.take((*input)[i], ordered["input"][i], fmt::format("input[{}]", i));
  conversation.close();
}

}  // namespace topkv::serve
