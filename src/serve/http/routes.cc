#include "src/serve/http/routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"
#include "src/core/threads/stopwatch.h"
#include "src/serve/answer/response.h"
#include "src/serve/http/request_check.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"

namespace topkv::serve {
namespace {

using httplib::Request;
using httplib::Response;
using Handled = httplib::Server::HandlerResponse;

/// What the client of an answer should know of it.
constexpr const char* warning_header = "X-Topkv-Warning";
/// A client that is gone before its answer, in the log; nginx' number.
constexpr int client_gone = 499;
constexpr auto moment = std::chrono::milliseconds(100);

/// What the log tells of the request that this thread handles.
struct Note {
  Stopwatch watch;
  std::string context;
  Usage usage;
  bool gone = false;
  int problem = 0;  // status of one that came after the response's
};
thread_local Note note;

void set_problem(Response& response, const Problem& problem) {
  response.status = problem.status();
  if (problem.status() == 429 || problem.status() == 503) response.set_header("Retry-After", "1");
  if (problem.status() == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(error_body(problem), json_type);
}

/// A handler whose problems are told.
template <class Work>
void answered(Response& response, const Work& work) {
  try {
    work();
  } catch (...) {
    set_problem(response, current_problem());
  }
}

std::string read_body(const httplib::ContentReader& reader, std::int64_t most) {
  std::string body;
  bool too_long = false;
  const bool whole = reader([&](const char* bytes, std::size_t size) {
    too_long = std::ssize(body) + static_cast<std::int64_t>(size) > most;
    if (!too_long) body.append(bytes, size);
    return !too_long;
  });
  if (too_long)
    throw Problem(413, fmt::format("the body has more than {} bytes; expected at most that", most),
                  {}, "too_large");
  if (!whole)
    throw Problem(408, "the body did not arrive in time, or is not complete; send it again");
  return body;
}

std::string new_id(bool chat) {
  static std::atomic<std::uint64_t> count = 0;
  static const std::uint64_t start = (std::uint64_t{std::random_device()()} << 32) ^
                                     static_cast<std::uint64_t>(std::time(nullptr));
  return fmt::format("{}-{:016x}{:06x}", chat ? "chatcmpl" : "cmpl", start, ++count);
}

/// One answer on its way to a client.
class Stream {
 public:
  using Clock = std::chrono::steady_clock;

  Stream(std::shared_ptr<Answer> answer, Responder responder, bool usage,
         std::chrono::milliseconds comment_every)
      : answer_(std::move(answer)),
        responder_(std::move(responder)),
        usage_(usage),
        comment_every_(comment_every) {}
  ~Stream() { answer_->cancel(); }  // nobody else waits for it
  Stream(const Stream&) = delete;   // cancels once
  Stream& operator=(const Stream&) = delete;

  /// The next event; none where the client is gone, at the end, or when that time has come. Throws
  /// Problem.
  std::optional<Event> next(Clock::time_point until = Clock::time_point::max()) {
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

  /// Before a stream's status is sent: a problem that shows at once has its own. Throws Problem.
  void wait_for_begin(std::chrono::milliseconds most) {
    answer_->wait_for_begin(most);
    first_ = answer_->next(std::chrono::milliseconds(0));
  }

  /// Sends the next event, or a comment where none comes.
  bool send(httplib::DataSink& sink) {
    const auto write = [&](const std::string& text) {
      wrote_ = Clock::now();
      return sink.write(text.data(), text.size());
    };
    try {
      const std::optional<Event> event =
          first_ ? std::exchange(first_, {}) : next(wrote_ + comment_every_);
      note.usage = answer_->usage();
      bool sent = true;
      if (note.gone) return false;
      if (!event && !answer_->finished()) {
        sent = write(sse_comment(answer_->reading()));
        if (!sent) note.gone = true;
        return sent;
      }
      if (std::exchange(opens_, false))
        for (const std::string& chunk : responder_.opening()) sent = sent && write(sse(chunk));
      if (event) {
        const std::string chunk = responder_.chunk(*event);
        // Events of a call of a tool give nothing to send before its end.
        if (!chunk.empty())
          sent = sent && write(sse(chunk));
        else if (Clock::now() >= wrote_ + comment_every_)
          sent = sent && write(sse_comment(answer_->reading()));
        if (!sent) note.gone = true;
        return sent;
      }
      if (usage_) sent = sent && write(sse(responder_.usage_chunk(answer_->usage())));
      sent = sent && write(sse_done);
    } catch (const Problem& problem) {  // too late for its status
      note.problem = problem.status();
      write(sse(error_body(problem)));
    }
    sink.done();
    return true;
  }

  /// All of it, in one piece; empty where the client is gone.
  std::string whole() {
    std::vector<Event> events;
    while (std::optional<Event> event = next()) events.push_back(std::move(*event));
    return note.gone ? std::string() : responder_.whole(events, answer_->usage());
  }

 private:
  std::shared_ptr<Answer> answer_;
  Responder responder_;
  bool usage_;
  std::chrono::milliseconds comment_every_;
  bool opens_ = true;
  std::optional<Event> first_;
  Clock::time_point wrote_ = Clock::now();  // last, to the client
};

void answer(Service& service, const ServerOptions& options, const AnswerRequest& request,
            const std::string& http_version, Response& response) {
  note.context = request.context;
  Accepted accepted = service.answer(request);
  note.context = accepted.context;
  if (!accepted.warning.empty()) response.set_header(warning_header, accepted.warning);
  const auto stream = std::make_shared<Stream>(
      std::move(accepted.answer),
      Responder(request, new_id(request.chat), static_cast<std::int64_t>(std::time(nullptr)),
                request.model.empty() ? service.options().model_name : request.model, accepted.form,
                accepted.in_thought),
      request.stream_usage, options.comment_every);
  if (request.stream) {
    stream->wait_for_begin(options.status_wait);
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");  // nginx would hold events back
    const auto send = [stream](std::size_t, httplib::DataSink& sink) { return stream->send(sink); };
    constexpr const char* type = "text/event-stream";
    if (http_version == "HTTP/1.0") {  // knows no chunks: a body ends with its connection
      response.set_header("Connection", "close");
      HttpServer::close_after_response();
      response.set_content_provider(type, send);
    } else {
      response.set_chunked_content_provider(type, send);
    }
    return;
  }
  std::string body = stream->whole();
  if (note.gone)
    response.status = client_gone;
  else
    response.set_content(std::move(body), json_type);
}

void log(Service& service, const Request& request, const Response& response) {
  const int status = note.gone ? client_gone : note.problem != 0 ? note.problem : response.status;
  const double seconds = note.watch.seconds();
  service.metrics().count_request(label_of(request.path), status, seconds);
  if (note.gone) ++service.metrics().disconnected;
  std::string line =
      fmt::format("{:%Y-%m-%d %H:%M:%S} {} {} {}", fmt::gmtime(std::time(nullptr)),
                  printable_beginning(request.method), printable_beginning(request.path), status);
  if (!note.context.empty()) line += fmt::format(" {}", printable_beginning(note.context));
  if (note.usage.prompt > 0)
    line += fmt::format(" {}+{}+{} tokens", note.usage.context, note.usage.prompt,
                        note.usage.generated);
  line += fmt::format(" {:.3f} s\n", seconds);
  std::fwrite(line.data(), 1, line.size(), stderr);
  note = {};
}

}  // namespace

void add_routes(HttpServer& server, Service& service, const ServerOptions& options) {
  server.set_pre_routing_handler([&options](const Request& request, Response& response) {
    note = {};
    // httplib would tell of ranges where a client asks for the head alone; none are served.
    response.set_header("Accept-Ranges", "none");
    try {
      check_request(request, options);
    } catch (const Problem& problem) {
      set_problem(response, problem);
      return Handled::Handled;
    }
    return Handled::Unhandled;
  });
  server.set_logger([&service](const Request& request, const Response& response) {
    log(service, request, response);
    // What is left of a body that nobody read is no request.
    if (response.status >= 400) HttpServer::close_after_response();
  });
  // What httplib refuses by itself, and all else that is no success.
  server.set_error_handler(
      httplib::Server::HandlerWithResponse([](const Request& request, Response& response) {
        if (response.body.empty() && response.status != client_gone)
          set_problem(response, unanswered(request, response.status));
        response.set_header("Connection", "close");
        return Handled::Handled;
      }));
  server.set_exception_handler([](const Request&, Response& response, std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (...) {
      set_problem(response, current_problem());
    }
  });

  server.Get("/", [](const Request&, Response& response) {
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; script-src 'unsafe-inline'; style-src "
                        "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors "
                        "'none'; base-uri 'none'; form-action 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_content(page, "text/html; charset=utf-8");
  });
  server.Get("/health", [](const Request&, Response& response) {
    response.set_content("{\"status\":\"ok\"}", json_type);
  });
  server.Get("/metrics", [&service](const Request&, Response& response) {
    response.set_content(service.metrics_text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/v1/models", [&service](const Request&, Response& response) {
    response.set_content(service.models(), json_type);
  });
  server.Get("/v1/models/([\\s\\S]+)", [&service](const Request& request, Response& response) {
    answered(response,
             [&] { response.set_content(service.one_model(request.matches[1]), json_type); });
  });
  server.Post("/v1/completions", [&service, &options](const Request& request, Response& response,
                                                      const httplib::ContentReader& reader) {
    answered(response, [&] {
      answer(service, options, parse_completion(read_body(reader, max_request_bytes)),
             request.version, response);
    });
  });
  server.Post("/v1/chat/completions",
              [&service, &options](const Request& request, Response& response,
                                   const httplib::ContentReader& reader) {
                answered(response, [&] {
                  answer(service, options, parse_chat(read_body(reader, max_request_bytes)),
                         request.version, response);
                });
              });

  server.Get("/v1/contexts", [&service](const Request&, Response& response) {
    response.set_content(service.all_contexts(), json_type);
  });
  server.Post("/v1/contexts",
              [&service](const Request&, Response& response, const httplib::ContentReader& reader) {
                answered(response, [&] {
                  // One at a time: these are large.
                  static std::atomic<bool> taken = false;
                  if (taken.exchange(true))
                    throw Problem(429, "another text is being received; try again later");
                  const std::shared_ptr<void> given_back(nullptr, [](void*) { taken = false; });
                  ContextRequest request = parse_context(read_body(reader, max_context_bytes));
                  note.context = request.name;
                  service.contexts().create(std::move(request));
                  response.status = 202;
                  response.set_content(service.one_context(note.context), json_type);
                });
              });
  server.Get("/v1/contexts/([^/]+)", [&service](const Request& request, Response& response) {
    answered(response,
             [&] { response.set_content(service.one_context(request.matches[1]), json_type); });
  });
  server.Delete("/v1/contexts/([^/]+)", [&service](const Request& request, Response& response) {
    answered(response, [&] {
      const std::string name = request.matches[1];
      service.remove_context(name);
      nlohmann::ordered_json json;
      json["name"] = name;
      json["object"] = "context";
      json["deleted"] = true;
      response.set_content(json.dump(), json_type);
    });
  });
}

}  // namespace topkv::serve
