// Bodies of requests, from anybody: parsed within limits, every field checked or refused. Pure
// functions; they throw Problem (400), which names the field.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/serve/request/answer_schema.h"
#include "src/serve/request/tool_calls.h"
#include "topkv/chat_template.h"
#include "topkv/generate.h"

namespace topkv::serve {

/// Longest bodies that are read, in bytes.
inline constexpr std::int64_t max_request_bytes = std::int64_t{4} << 20;
inline constexpr std::int64_t max_context_bytes = std::int64_t{64} << 20;

/// Most answers to a prompt, and to all prompts of a request.
inline constexpr std::int64_t max_choices = 8;
inline constexpr std::int64_t max_answers = 1024;
/// Most messages of a conversation, or items of an input.
inline constexpr std::int64_t max_messages = 4096;
/// Most tools of a request, and calls of a message.
inline constexpr std::size_t max_tools = 256;
/// Most stop strings, and bytes of each.
inline constexpr std::size_t max_stops = 16;
inline constexpr std::size_t max_stop_bytes = 256;
/// Most alternatives to a token that are told.
inline constexpr std::int64_t max_top_logprobs = 20;
/// Most tokens of a "logit_bias".
inline constexpr std::size_t max_biases = 1024;

/// How an answer is generated; what is not given is the model's own, or off.
struct AnswerOptions {
  std::optional<std::int64_t> max_tokens;
  bool unlimited = false;  ///< max_tokens is -1: as many as there is room for
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> repetition_penalty;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  std::int64_t choices = 1;              ///< "n"
  std::optional<std::int64_t> logprobs;  ///< so many alternatives of each token; 0: itself alone
  std::vector<TokenBias> logit_bias;     ///< ids from 0 on, each once; numbers from -100 to 100
};

/// How an answer in a chat thinks before it answers.
enum class Thinking : std::uint8_t {
  by_template,  ///< as the chat template has it
  off,
  on,
  low,     ///< on, with this effort where the template knows efforts
  medium,  ///< likewise
  high,    ///< likewise
};

/// A text, or its tokens.
using Prompt = std::variant<std::string, std::vector<Token>>;

/// A request for answers, of any API.
struct AnswerRequest {
  bool chat = false;
  std::string model;            ///< empty: the one that is served
  std::string context;          ///< a name; empty: none
  std::vector<Prompt> prompts;  ///< unless chat; answers are numbered prompt by prompt
  bool echo = false;            ///< each answer begins with its prompt
  std::vector<ChatMessage> messages;
  std::string variables;         ///< of the chat template, JSON; tools among them
  Tools tools = Tools::array();  ///< that may be called
  bool one_call = false;         ///< calls behind the first are left out
  AnswerSchema schema = {};
  Thinking thinking = Thinking::by_template;
  AnswerOptions options;
  bool stream = false;
  bool stream_usage = false;  ///< "stream_options": {"include_usage": true}

  /// Answers to all prompts together.
  std::int64_t answers() const {
    return options.choices * std::max<std::int64_t>(1, std::ssize(prompts));
  }
};

AnswerRequest parse_completion(std::string_view body);
AnswerRequest parse_chat(std::string_view body);

/// POST /v1/contexts.
struct ContextRequest {
  std::string name;
  std::string text;
  bool chat = false;
  std::string system;
};

ContextRequest parse_context(std::string_view body);

/// Names of contexts: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', not '.' first.
bool is_context_name(std::string_view name);

}  // namespace topkv::serve
