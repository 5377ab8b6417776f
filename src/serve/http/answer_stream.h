// One answer on its way to a client.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "src/serve/answer/answer_writer.h"
#include "src/serve/http/http_server.h"
#include "src/serve/http/server.h"
#include "src/serve/run/service.h"

namespace topkv::serve {

class AnswerStream {
 public:
  using Clock = std::chrono::steady_clock;

  AnswerStream(std::shared_ptr<Answer> answer, std::unique_ptr<AnswerWriter> writer,
               std::chrono::milliseconds wait_every);
  ~AnswerStream() { answer_->cancel(); }       // nobody else waits for it
  AnswerStream(const AnswerStream&) = delete;  // cancels once
  AnswerStream& operator=(const AnswerStream&) = delete;

  const char* type() const { return writer_->stream_type(); }
  /// Before a stream's status is sent: a problem that shows at once has its own. Throws Problem.
  void wait_for_begin(std::chrono::milliseconds most);
  /// Sends the next event, or what shows that the connection lives where none comes.
  bool send(httplib::DataSink& sink);
  /// All of it, in one piece; empty where the client is gone.
  std::string whole();

 private:
  /// The next event; none where the client is gone, at the end, or when that time has come. Throws
  /// Problem.
  std::optional<Event> next(Clock::time_point until = Clock::time_point::max());

  std::shared_ptr<Answer> answer_;
  std::unique_ptr<AnswerWriter> writer_;
  std::chrono::milliseconds wait_every_;
  bool opens_ = true;
  std::optional<Event> first_;
  Clock::time_point wrote_ = Clock::now();  // last, to the client
};

/// Sends the answer to an accepted request as a stream, or whole. Throws Problem.
void send_answer(const httplib::Request& request, httplib::Response& response, Accepted accepted,
                 std::unique_ptr<AnswerWriter> writer, bool streamed, const ServerOptions& options);

}  // namespace topkv::serve
