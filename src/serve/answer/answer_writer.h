// An answer in the form of an API: one JSON object, or the pieces of a stream.
#pragma once

#include <string>
#include <vector>

#include "src/serve/answer/answer.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {

/// One thread. Pieces of a stream are asked for in the order of their events.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  /// The Content-Type of a stream.
  virtual const char* stream_type() const = 0;
  /// What a stream begins with.
  virtual std::string opening() = 0;
  /// Empty where the event gives nothing to send yet.
  virtual std::string piece(const Event& event) = 0;
  /// What shows a client, and proxies between, that the connection lives while there is no event.
  virtual std::string waiting(const ReadingState& reading) = 0;
  /// What a stream ends with.
  virtual std::string closing(const AnswerTotals& totals) = 0;
  /// What a stream ends with instead, after a problem.
  virtual std::string broken(const Problem& problem) = 0;
  /// The response without a stream. events: all of them, in order.
  virtual std::string whole(const std::vector<Event>& events, const AnswerTotals& totals) = 0;

  AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;  // is used by reference
  AnswerWriter& operator=(const AnswerWriter&) = delete;
};

}  // namespace topkv::serve
