// Answers as clients of OpenAI's Responses API read them: a response object, or server-sent events
// that build one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/serve/answer/answer_parts.h"
#include "src/serve/answer/answer_writer.h"
#include "src/serve/request/responses_request.h"

namespace topkv::serve {

class ResponsesWriter : public AnswerWriter {
 public:
  /// id: unique, without a prefix. created: seconds since 1970. model: what is served. form,
  /// in_thought: of the answer.
  ResponsesWriter(const ResponsesRequest& request, std::string id, std::int64_t created,
                  const std::string& model, const AnswerForm& form, bool in_thought);

  const char* stream_type() const override { return "text/event-stream"; }
  std::string opening() override;
  std::string piece(const Event& event) override;
  std::string waiting(const ReadingState& reading) override;
  std::string closing(const AnswerTotals& totals) override;
  std::string broken(const Problem& problem) override;
  std::string whole(const std::vector<Event>& events, const AnswerTotals& totals) override;

 private:
  using Json = nlohmann::ordered_json;

  /// Adds an event to those that are to be sent. fields: an object. Only for streams.
  void tell(const char* type, Json fields);
  void tell_response(const char* type);
  /// Adds an item to the output. It is open until close_item. Returns it.
  Json& open_item(const char* type, const char* prefix, Json fields);
  /// Ends the item that is open, if one is.
  void close_item();
  /// Adds text to an item of one part, which is opened where another is, or none.
  void add_text(const char* item, const std::string& text);
  void add_call(const ToolCall& call);
  /// Adds what an event gives to the output.
  void take(const Event& event);
  /// Where events of the open item belong.
  Json place() const;
  /// Where events of the text of the open item belong.
  Json text_place() const;
  void end(const AnswerTotals& totals);
  /// The events to send, which are then none.
  std::string told();

  std::string id_;
  Json response_;
  AnswerParts parts_;
  std::string open_;  // type of the item that is open; empty: none
  std::string finish_;
  bool streams_ = true;  // events are built
  std::int64_t sequence_ = 0;
  std::string events_;
};

}  // namespace topkv::serve
