// Answers as OpenAI's clients read them: one JSON object, or server-sent events. Pure functions of
// what happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/serve/answer.h"
#include "src/serve/request.h"

namespace topkv::serve {

/// One event of a stream.
std::string sse(const std::string& data);
/// A comment of a stream, which clients pass over: it shows them, and proxies between, that the
/// connection lives while there is no event.
std::string sse_comment(const ReadingState& reading);
/// The last one.
inline const std::string sse_done = "data: [DONE]\n\n";

class Responder {
 public:
  /// id: of the response, unique; created: seconds since 1970; model: what is served.
  Responder(const AnswerRequest& request, std::string id, std::int64_t created, std::string model);

  /// What a stream begins with: in a chat whose turn it is, for each answer. No event else.
  std::vector<std::string> opening() const;
  /// Not const: a completion's logprobs tell where in the text tokens begin.
  std::string chunk(const Event& event);
  std::string usage_chunk(const Usage& usage) const;
  /// events: all of them, in order.
  std::string whole(const std::vector<Event>& events, const Usage& usage);

 private:
  bool chat_;
  bool usage_in_chunks_;
  std::string id_;
  std::int64_t created_;
  std::string model_;
  std::vector<std::int64_t> characters_;  // so far, of each answer
};

}  // namespace topkv::serve
