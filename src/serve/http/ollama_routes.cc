#include "src/serve/http/ollama_routes.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "src/serve/answer/ollama_response.h"
#include "src/serve/http/answer_stream.h"
#include "src/serve/http/handling.h"
#include "src/serve/http/request_check.h"
#include "src/serve/request/ollama_request.h"

namespace topkv::serve {
namespace {

/// Clients compare it with the version that has what they need. These routes are those of this
/// version of Ollama.
constexpr const char* version_body = "{\"version\":\"0.13.3\"}";

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void answer_ollama(Service& service, const ServerOptions& options, OllamaRoute route,
                   const OllamaRequest& asked, const httplib::Request& request,
                   httplib::Response& response) {
  note.context = asked.answer.context;
  if (asked.loads) {
    service.in_template(asked.answer);  // throws for an unknown name
    response.set_content(ollama_loaded(route, asked.answer.model, nanoseconds_now()), json_type);
    return;
  }
  Accepted accepted = service.answer(asked.answer);
  auto writer = std::make_unique<OllamaWriter>(asked.answer, route, new_id("ollama-"),
                                               accepted.form, accepted.in_thought, nanoseconds_now);
  send_answer(request, response, std::move(accepted), std::move(writer), asked.answer.stream,
              options);
}

}  // namespace

void add_ollama_routes(HttpServer& server, Service& service, const ServerOptions& options) {
  using httplib::Request;
  using httplib::Response;
  server.Get("/api/version", [](const Request&, Response& response) {
    response.set_content(version_body, json_type);
  });
  server.Get("/api/tags", [&service](const Request&, Response& response) {
    response.set_content(service.ollama_models(), json_type);
  });
  server.Get("/api/ps", [&service](const Request&, Response& response) {
    response.set_content(service.ollama_running(), json_type);
  });
  server.Post("/api/show", [&service](const Request& request, Response& response,
                                      const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      const std::string name = parse_ollama_show(read_body(reader, max_request_bytes));
      response.set_content(service.ollama_model(name), json_type);
    });
  });
  server.Post("/api/generate", [&service, &options](const Request& request, Response& response,
                                                    const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      const OllamaRequest asked = parse_ollama_generate(
          read_body(reader, max_request_bytes),
          [&service](const AnswerRequest& one) { return service.in_template(one); });
      answer_ollama(service, options, OllamaRoute::generate, asked, request, response);
    });
  });
  server.Post("/api/chat", [&service, &options](const Request& request, Response& response,
                                                const httplib::ContentReader& reader) {
    answered(request, response, [&] {
      answer_ollama(service, options, OllamaRoute::chat,
                    parse_ollama_chat(read_body(reader, max_request_bytes)), request, response);
    });
  });
}

}  // namespace topkv::serve
