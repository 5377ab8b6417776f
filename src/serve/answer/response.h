// Answers as OpenAI's clients read them: one JSON object, or server-sent events. Pure functions of
// what happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/serve/answer/answer.h"
#include "src/serve/answer/answer_parts.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// One event of a stream.
std::string sse(const std::string& data);
/// A comment of a stream, which clients pass over: it shows them, and proxies between, that the
/// connection lives while there is no event.
std::string sse_comment(const ReadingState& reading);
/// The last one.
inline const std::string sse_done = "data: [DONE]\n\n";

/// The log-probabilities of tokens in a chat: {"content": [...]}, or null for no tokens.
nlohmann::ordered_json chat_logprobs(const std::vector<ToldToken>& tokens);

/// The name of a call, from what is unique: nine letters and digits, which is the one form that the
/// templates of Mistral take.
std::string call_id(const std::string& unique);

class Responder {
 public:
  /// id: of the response, unique; created: seconds since 1970; model: what is served.
  /// form, in_thought: of the answers, in a chat.
  Responder(const AnswerRequest& request, std::string id, std::int64_t created, std::string model,
            const AnswerForm& form = {}, bool in_thought = false);

  /// What a stream begins with: in a chat whose turn it is, for each answer. No event else.
  std::vector<std::string> opening() const;
  /// Empty where the event gives nothing to send yet. Not const: parts of answers, and a
  /// completion's logprobs, go on from the events before.
  std::string chunk(const Event& event);
  std::string usage_chunk(const Usage& usage) const;
  /// events: all of them, in order.
  std::string whole(const std::vector<Event>& events, const Usage& usage);

 private:
  /// What an event adds to an answer in a chat.
  AnswerDelta delta_of(const Event& event);
  /// Why an answer in a chat ended.
  std::string finish_of(const Event& event) const;
  /// The calls as clients know them. numbered: for pieces of a stream.
  nlohmann::ordered_json calls_json(std::size_t choice, const std::vector<ToolCall>& calls,
                                    bool numbered);

  bool chat_;
  bool usage_in_chunks_;
  std::string id_;
  std::int64_t created_;
  std::string model_;
  std::vector<std::int64_t> characters_;  // so far, of each answer
  std::vector<AnswerParts> parts_;        // of each answer, in a chat
  std::vector<std::size_t> calls_;        // so far, of each answer
};

}  // namespace topkv::serve
