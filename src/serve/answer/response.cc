#include "src/serve/answer/response.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "src/serve/request/json_text.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t characters_of(const std::string& text) {
  std::int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0U) != 0x80U ? 1 : 0;
  return count;
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json usage_of(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.context + usage.prompt;
  json["completion_tokens"] = usage.generated;
  json["total_tokens"] = usage.context + usage.prompt + usage.generated;
  json["prompt_tokens_details"]["cached_tokens"] = usage.context + usage.kept;
  return json;
}

/// OpenAI's form of a number that is not there.
Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

Json chat_token(const std::string& name, const std::string& bytes,
                const std::optional<double>& logprob) {
  Json json;
  json["token"] = name;
  json["logprob"] = number_or_null(logprob);
  json["bytes"] = bytes.empty() ? Json(nullptr) : bytes_of(bytes);
  return json;
}

/// An object keyed by name. Of two tokens with one name it has the likelier.
Json best_by_name(const std::vector<ToldToken::Alternative>& best_first) {
  Json json = Json::object();
  for (const auto& one : best_first)
    if (!json.contains(one.name)) json[one.name] = one.logprob;
  return json;
}

/// at: characters before the first of them; moved on.
Json completion_logprobs(const std::vector<ToldToken>& tokens, std::int64_t& at) {
  if (tokens.empty()) return nullptr;
  Json json;
  for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    json[key] = Json::array();
  for (const ToldToken& token : tokens) {
    json["tokens"].push_back(token.name);
    json["token_logprobs"].push_back(number_or_null(token.logprob));
    json["top_logprobs"].push_back(token.logprob ? best_by_name(token.top) : Json(nullptr));
    json["text_offset"].push_back(at);
    at += characters_of(token.bytes);
  }
  return json;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json head(const std::string& id, const char* object, std::int64_t created,
          const std::string& model) {
  Json json;
  json["id"] = id;
  json["object"] = object;
  json["created"] = created;
  json["model"] = model;
  return json;
}

}  // namespace

Json chat_logprobs(const std::vector<ToldToken>& tokens) {
  if (tokens.empty()) return nullptr;
  Json content = Json::array();
  for (const ToldToken& token : tokens) {
    Json one = chat_token(token.name, token.bytes, token.logprob);
    one["top_logprobs"] = Json::array();
    for (const auto& other : token.top)
      one["top_logprobs"].push_back(chat_token(other.name, other.bytes, other.logprob));
    content.push_back(std::move(one));
  }
  Json json;
  json["content"] = std::move(content);
  return json;
}

std::string call_id(const std::string& unique) {
  constexpr std::string_view signs = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : unique) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  std::string id;
  for (int i = 0; i < 9; ++i, hash /= signs.size()) id += signs[hash % signs.size()];
  return id;
}

std::string sse(const std::string& data) { return "data: " + data + "\n\n"; }

std::string sse_comment(const ReadingState& reading) {
  if (!reading.begun) return ": waiting in the queue\n\n";
  if (reading.read < reading.total)
    return fmt::format(": reading, {} of {} tokens\n\n", reading.read, reading.total);
  return ": answering\n\n";
}

Responder::Responder(const AnswerRequest& request, std::string id, std::int64_t created,
                     std::string model, const AnswerForm& form, bool in_thought)
    : chat_(request.chat),
      usage_in_chunks_(request.stream_usage),
      id_(std::move(id)),
      created_(created),
      model_(std::move(model)),
      characters_(static_cast<std::size_t>(request.answers())),
      calls_(characters_.size()) {
  for (std::size_t i = 0; chat_ && i < characters_.size(); ++i)
    parts_.emplace_back(form, in_thought, request.tools, request.one_call);
}

AnswerDelta Responder::delta_of(const Event& event) {
  return delta_of_event(parts_.at(event.choice), event);
}

std::string Responder::finish_of(const Event& event) const {
  return event.finish == "stop" && parts_.at(event.choice).called() ? "tool_calls" : event.finish;
}

Json Responder::calls_json(std::size_t choice, const std::vector<ToolCall>& calls, bool numbered) {
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    const std::size_t number = calls_.at(choice)++;
    Json json;
    if (numbered) json["index"] = number;
    json["id"] = call_id(fmt::format("{}/{}/{}", id_, choice, number));
    json["type"] = "function";
    json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<std::string> Responder::opening() const {
  std::vector<std::string> chunks;
  for (std::size_t i = 0; chat_ && i < characters_.size(); ++i) {
    Json choice;
    choice["index"] = i;
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = nullptr;
    Json json = head(id_, "chat.completion.chunk", created_, model_);
    json["choices"] = Json::array({std::move(choice)});
    if (usage_in_chunks_) json["usage"] = nullptr;
    chunks.push_back(json_text(json));
  }
  return chunks;
}

std::string Responder::chunk(const Event& event) {
  Json choice;
  choice["index"] = event.choice;
  if (chat_) {
    const AnswerDelta more = delta_of(event);
    if (more.empty() && event.logprobs.empty() && event.finish.empty()) return {};
    Json& delta = choice["delta"] = Json::object();
    if (!more.reasoning.empty()) delta["reasoning_content"] = more.reasoning;
    if (!more.content.empty()) delta["content"] = more.content;
    if (!more.calls.empty()) delta["tool_calls"] = calls_json(event.choice, more.calls, true);
    choice["logprobs"] = chat_logprobs(event.logprobs);
  } else {
    choice["text"] = event.text;
    choice["logprobs"] = completion_logprobs(event.logprobs, characters_.at(event.choice));
  }
  choice["finish_reason"] = text_or_null(chat_ ? finish_of(event) : event.finish);
  Json json = head(id_, chat_ ? "chat.completion.chunk" : "text_completion", created_, model_);
  json["choices"] = Json::array({std::move(choice)});
  if (usage_in_chunks_) json["usage"] = nullptr;
  return json_text(json);
}

std::string Responder::usage_chunk(const Usage& usage) const {
  Json json = head(id_, chat_ ? "chat.completion.chunk" : "text_completion", created_, model_);
  json["choices"] = Json::array();
  json["usage"] = usage_of(usage);
  return json_text(json);
}

std::string Responder::whole(const std::vector<Event>& events, const Usage& usage) {
  std::vector<Event> answers(characters_.size());
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i].choice = i;
  for (const Event& event : events) {
    Event& answer = answers.at(event.choice);
    answer.text += event.text;
    answer.logprobs.insert(answer.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    answer.finish += event.finish;
  }
  Json json = head(id_, chat_ ? "chat.completion" : "text_completion", created_, model_);
  json["choices"] = Json::array();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Json choice;
    choice["index"] = i;
    if (chat_) {
      const AnswerDelta all = delta_of(answers[i]);
      Json& message = choice["message"] = {{"role", "assistant"}, {"content", all.content}};
      if (all.content.empty() && !all.calls.empty()) message["content"] = nullptr;
      if (!all.reasoning.empty()) message["reasoning_content"] = all.reasoning;
      if (!all.calls.empty()) message["tool_calls"] = calls_json(i, all.calls, false);
      choice["logprobs"] = chat_logprobs(answers[i].logprobs);
    } else {
      choice["text"] = answers[i].text;
      choice["logprobs"] = completion_logprobs(answers[i].logprobs, characters_[i]);
    }
    choice["finish_reason"] = text_or_null(chat_ ? finish_of(answers[i]) : answers[i].finish);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage_of(usage);
  return json_text(json);
}

}  // namespace topkv::serve
