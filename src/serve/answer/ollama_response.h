// Answers as Ollama's clients read them: one JSON object, or a stream with one on each line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/serve/answer/answer_parts.h"
#include "src/serve/answer/answer_writer.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// The route that is answered: texts of /api/chat are messages.
enum class OllamaRoute : std::uint8_t { generate, chat };

/// A time as Ollama spells it, RFC 3339 in UTC. nanoseconds: since 1970.
std::string ollama_time(std::int64_t nanoseconds);
/// The answer to a request that only loads the model. now: as for ollama_time.
std::string ollama_loaded(OllamaRoute route, const std::string& model, std::int64_t now);

class OllamaWriter : public AnswerWriter {
 public:
  /// id: unique, for calls of tools. model: as the request names it. form, in_thought: of the
  /// answer, in a chat. now: returns the time, in nanoseconds since 1970.
  OllamaWriter(const AnswerRequest& request, OllamaRoute route, std::string id,
               const AnswerForm& form, bool in_thought, std::int64_t (*now)());

  const char* stream_type() const override { return "application/x-ndjson"; }
  std::string opening() override { return {}; }
  std::string piece(const Event& event) override;
  /// A piece without text: Ollama's streams have no comments.
  std::string waiting(const ReadingState& reading) override;
  std::string closing(const AnswerTotals& totals) override;
  std::string broken(const Problem& problem) override { return ollama_error_body(problem) + "\n"; }
  std::string whole(const std::vector<Event>& events, const AnswerTotals& totals) override;

 private:
  /// What an event adds to the answer.
  AnswerDelta delta_of(const Event& event);
  nlohmann::ordered_json object_of(const AnswerDelta& delta, const std::vector<ToldToken>& logprobs,
                                   bool done);
  std::string last(nlohmann::ordered_json json, const AnswerTotals& totals) const;

  OllamaRoute route_;
  std::string id_;
  std::string model_;
  std::optional<AnswerParts> parts_;  // in a chat
  std::size_t calls_ = 0;
  std::string finish_;
  std::int64_t (*now_)();
};

}  // namespace topkv::serve
