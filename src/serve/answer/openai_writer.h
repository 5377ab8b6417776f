// Answers of /v1/completions and /v1/chat/completions.
#pragma once

#include <utility>

#include "src/serve/answer/answer_writer.h"
#include "src/serve/answer/response.h"

namespace topkv::serve {

class OpenAiWriter : public AnswerWriter {
 public:
  /// usage: a stream ends with what the request took.
  OpenAiWriter(Responder responder, bool usage) : responder_(std::move(responder)), usage_(usage) {}

  const char* stream_type() const override { return "text/event-stream"; }
  std::string opening() override;
  std::string piece(const Event& event) override;
  std::string waiting(const ReadingState& reading) override { return sse_comment(reading); }
  std::string closing(const AnswerTotals& totals) override;
  std::string broken(const Problem& problem) override { return sse(error_body(problem)); }
  std::string whole(const std::vector<Event>& events, const AnswerTotals& totals) override {
    return responder_.whole(events, totals.usage);
  }

 private:
  Responder responder_;
  bool usage_;
};

}  // namespace topkv::serve
