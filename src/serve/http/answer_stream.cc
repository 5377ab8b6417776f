#include "src/serve/http/answer_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/serve/http/handling.h"
#include "src/serve/http/request_check.h"

namespace topkv::serve {
namespace {

/// What the client of an answer should know of it.
constexpr const char* warning_header = "X-Topkv-Warning";
constexpr auto moment = std::chrono::milliseconds(100);

}  // namespace

AnswerStream::AnswerStream(std::shared_ptr<Answer> answer, std::unique_ptr<AnswerWriter> writer,
                           std::chrono::milliseconds wait_every)
    : answer_(std::move(answer)), writer_(std::move(writer)), wait_every_(wait_every) {}

std::optional<Event> AnswerStream::next(Clock::time_point until) {
  while (!answer_->finished() && Clock::now() < until) {
    if (HttpServer::connection().gone()) {  // however fast events come
      note.gone = true;
      break;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (std::optional<Event> event = answer_->next(std::min(moment, left))) return event;
  }
  note.usage = answer_->usage();
  return {};
}

void AnswerStream::wait_for_begin(std::chrono::milliseconds most) {
  answer_->wait_for_begin(most);
  first_ = answer_->next(std::chrono::milliseconds(0));
}

bool AnswerStream::send(httplib::DataSink& sink) {
  const auto write = [&](const std::string& text) {
    if (text.empty()) return true;
    wrote_ = Clock::now();
    return sink.write(text.data(), text.size());
  };
  try {
    const std::optional<Event> event =
        first_ ? std::exchange(first_, {}) : next(wrote_ + wait_every_);
    note.usage = answer_->usage();
    if (note.gone) return false;
    if (!event && !answer_->finished()) {
      const bool sent = write(writer_->waiting(answer_->reading()));
      if (!sent) note.gone = true;
      return sent;
    }
    bool sent = true;
    if (std::exchange(opens_, false)) sent = write(writer_->opening());
    if (event) {
      std::string piece = writer_->piece(*event);
      // Events of a call of a tool give nothing to send before its end.
      if (piece.empty() && Clock::now() >= wrote_ + wait_every_)
        piece = writer_->waiting(answer_->reading());
      sent = sent && write(piece);
      if (!sent) note.gone = true;
      return sent;
    }
    write(writer_->closing(answer_->totals()));
  } catch (const Problem& problem) {  // too late for its status
    note.problem = problem.status();
    write(writer_->broken(problem));
  }
  sink.done();
  return true;
}

std::string AnswerStream::whole() {
  std::vector<Event> events;
  while (std::optional<Event> event = next()) events.push_back(std::move(*event));
  return note.gone ? std::string() : writer_->whole(events, answer_->totals());
}

void send_answer(const httplib::Request& request, httplib::Response& response, Accepted accepted,
                 std::unique_ptr<AnswerWriter> writer, bool streamed,
                 const ServerOptions& options) {
  note.context = accepted.context;
  if (!accepted.warning.empty()) response.set_header(warning_header, accepted.warning);
  const auto stream = std::make_shared<AnswerStream>(std::move(accepted.answer), std::move(writer),
                                                     options.comment_every);
  if (!streamed) {
    std::string body = stream->whole();
    if (note.gone)
      response.status = client_gone;
    else
      response.set_content(std::move(body), json_type);
    return;
  }
  stream->wait_for_begin(options.status_wait);
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");  // nginx would hold events back
  const auto send = [stream](std::size_t, httplib::DataSink& sink) { return stream->send(sink); };
  if (request.version == "HTTP/1.0") {  // knows no chunks: a body ends with its connection
    response.set_header("Connection", "close");
    HttpServer::close_after_response();
    response.set_content_provider(stream->type(), send);
  } else {
    response.set_chunked_content_provider(stream->type(), send);
  }
}

}  // namespace topkv::serve
