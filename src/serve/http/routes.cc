#include "src/serve/http/routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "src/core/text/printable.h"
#include "src/serve/answer/openai_writer.h"
#include "src/serve/answer/responses_response.h"
#include "src/serve/http/answer_stream.h"
#include "src/serve/http/handling.h"
#include "src/serve/http/ollama_routes.h"
#include "src/serve/http/request_check.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"
#include "src/serve/request/responses_request.h"

namespace topkv::serve {
namespace {

using httplib::Request;
using httplib::Response;
using Handled = httplib::Server::HandlerResponse;

/// Answers a request of /v1.
void answer(Service& service, const ServerOptions& options, const AnswerRequest& asked,
            const Request& request, Response& response) {
  note.context = asked.context;
  Accepted accepted = service.answer(asked);
  auto writer = std::make_unique<OpenAiWriter>(
      Responder(asked, new_id(asked.chat ? "chatcmpl-" : "cmpl-"),
                static_cast<std::int64_t>(std::time(nullptr)),
                asked.model.empty() ? service.options().model_name : asked.model, accepted.form,
                accepted.in_thought),
      asked.stream_usage);
  send_answer(request, response, std::move(accepted), std::move(writer), asked.stream, options);
}

/// Answers a request of /v1/responses.
void answer_responses(Service& service, const ServerOptions& options, const ResponsesRequest& asked,
                      const Request& request, Response& response) {
  note.context = asked.answer.context;
  Accepted accepted = service.answer(asked.answer);
  auto writer = std::make_unique<ResponsesWriter>(
      asked, new_id(""), static_cast<std::int64_t>(std::time(nullptr)),
      asked.answer.model.empty() ? service.options().model_name : asked.answer.model, accepted.form,
      accepted.in_thought);
  send_answer(request, response, std::move(accepted), std::move(writer), asked.answer.stream,
              options);
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
      set_problem(request, response, problem);
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
          set_problem(request, response, unanswered(request, response.status));
        response.set_header("Connection", "close");
        return Handled::Handled;
      }));
  server.set_exception_handler(
      [](const Request& request, Response& response, std::exception_ptr error) {
        try {
          std::rethrow_exception(error);
        } catch (...) {
          set_problem(request, response, current_problem());
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
    answered(request, response,
             [&] { response.set_content(service.one_model(request.matches[1]), json_type); });
  });
  server.Post("/v1/completions", [&service, &options](const Request& request, Response& response,
                                                      const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      answer(service, options, parse_completion(read_body(reader, max_request_bytes)), request,
             response);
    });
  });
  server.Post("/v1/chat/completions", [&service, &options](const Request& request,
                                                           Response& response,
                                                           const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      answer(service, options, parse_chat(read_body(reader, max_request_bytes)), request, response);
    });
  });

  server.Post("/v1/responses", [&service, &options](const Request& request, Response& response,
                                                    const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      answer_responses(service, options, parse_responses(read_body(reader, max_request_bytes)),
                       request, response);
    });
  });

  server.Get("/v1/contexts", [&service](const Request&, Response& response) {
    response.set_content(service.all_contexts(), json_type);
  });
  server.Post("/v1/contexts", [&service](const Request& request, Response& response,
                                         const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      // One at a time: these are large.
      static std::atomic<bool> taken = false;
      if (taken.exchange(true))
        throw Problem(429, "another text is being received; try again later");
      const std::shared_ptr<void> given_back(nullptr, [](void*) { taken = false; });
      ContextRequest text = parse_context(read_body(reader, max_context_bytes));
      note.context = text.name;
      service.contexts().create(std::move(text));
      response.status = 202;
      response.set_content(service.one_context(note.context), json_type);
    });
  });
  server.Get("/v1/contexts/([^/]+)", [&service](const Request& request, Response& response) {
    answered(request, response,
             [&] { response.set_content(service.one_context(request.matches[1]), json_type); });
  });
  server.Delete("/v1/contexts/([^/]+)", [&service](const Request& request, Response& response) {
    answered(request, response, [&] {
      const std::string name = request.matches[1];
      service.remove_context(name);
      nlohmann::ordered_json json;
      json["name"] = name;
      json["object"] = "context";
      json["deleted"] = true;
      response.set_content(json.dump(), json_type);
    });
  });
  add_ollama_routes(server, service, options);
}

}  // namespace topkv::serve
