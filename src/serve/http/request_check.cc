#include "src/serve/http/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "src/core/text/printable.h"
#include "src/serve/request/guard.h"
#include "src/serve/request/request.h"

namespace topkv::serve {
namespace {

using httplib::Request;

constexpr const char* paths[] = {"/",
                                 "/health",
                                 "/metrics",
                                 "/v1/models",
                                 "/v1/contexts",
                                 "/v1/completions",
                                 "/v1/chat/completions",
                                 "/v1/responses",
                                 "/api/version",
                                 "/api/tags",
                                 "/api/ps",
                                 "/api/show",
                                 "/api/generate",
                                 "/api/chat"};
constexpr std::string_view one_context = "/v1/contexts/";
constexpr std::string_view one_model = "/v1/models/";
constexpr std::string_view one_response = "/v1/responses/";
constexpr const char* posts[] = {"/v1/contexts",  "/v1/completions", "/v1/chat/completions",
                                 "/v1/responses", "/api/show",       "/api/generate",
                                 "/api/chat"};

/// Routes of other servers that clients ask for.
struct MissingRoute {
  std::string_view path;
  const char* why;
};
constexpr const char* no_embeddings =
    "topkv serve makes no embeddings; give the client another server for them";
constexpr const char* one_model_only =
    "topkv serve has the one model that it was started with, and neither gets nor changes models; "
    "start it with topkv serve -m MODEL";
constexpr MissingRoute missing_routes[] = {
    {"/v1/embeddings", no_embeddings},  {"/api/embed", no_embeddings},
    {"/api/embeddings", no_embeddings}, {"/api/pull", one_model_only},
    {"/api/push", one_model_only},      {"/api/create", one_model_only},
    {"/api/copy", one_model_only},      {"/api/delete", one_model_only}};

const MissingRoute* missing_route(std::string_view path) {
  const auto* const found = std::ranges::find(missing_routes, path, &MissingRoute::path);
  return found == std::end(missing_routes) ? nullptr : found;
}

bool is_known(const std::string& path) {
  return std::ranges::find(paths, path) != std::end(paths) || missing_route(path) != nullptr ||
         (path.starts_with(one_model) && path.size() > one_model.size()) ||
         (path.starts_with(one_context) && is_context_name(path.substr(one_context.size())));
}

/// Whether it is JSON, however spelled, with parameters or without (RFC 9110, 8.3.1).
bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  return std::ranges::equal(type, std::string_view(json_type), {}, lower);
}

/// Whether a page in a browser may have sent it: browsers then send these headers.
bool is_of_page(const Request& request) {
  return request.has_header("Origin") || request.has_header("Sec-Fetch-Site");
}

/// A page of another site cannot send JSON's type. Some clients of Ollama send none, or curl's own;
/// pages could, so these types are for requests of no page.
void check_type(const Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  if (is_json_type(type)) return;
  const bool untyped = type.empty() || type == "application/x-www-form-urlencoded";
  if (untyped && request.path.starts_with(ollama_api) && !is_of_page(request)) return;
  throw Problem(415, fmt::format("Content-Type is \"{}\"; expected application/json (curl: add -H "
                                 "'Content-Type: application/json')",
                                 printable_beginning(type)));
}

Problem not_for(const Request& request) {
  return {405, fmt::format("{} is not for {}; docs/reference/server.md lists the routes",
                           printable_beginning(request.method), printable_beginning(request.path))};
}

/// A proxy in front and this server must see the same requests in a connection's bytes: one length
/// of a body, told in one way.
void check_framing(const Request& request) {
  for (const char* name : {"Host", "Content-Length", "Transfer-Encoding"})
    if (request.get_header_value_count(name) > 1)
      throw Problem(400, fmt::format("the header {} comes more than once; expected one", name));
  if (!request.has_header("Transfer-Encoding")) return;
  if (request.has_header("Content-Length"))
    throw Problem(400, "found both Content-Length and Transfer-Encoding; expected one of them");
  const std::string coding = request.get_header_value("Transfer-Encoding");
  if (coding != "chunked")
    throw Problem(400, "Transfer-Encoding is \"" + printable_beginning(coding) +
                           "\"; expected chunked, or Content-Length in its place");
}

/// Of a body that says its length: refused now rather than when so much has come, or has not.
void check_length(const Request& request) {
  if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding"))
    throw Problem(411, "expected a body, with its Content-Length");
  const std::string length = request.get_header_value("Content-Length");
  const std::int64_t most = request.path == "/v1/contexts" ? max_context_bytes : max_request_bytes;
  if (length.find_first_not_of("0123456789") != length.npos)
    throw Problem(400, "Content-Length is \"" + printable_beginning(length) +
                           "\"; expected a number of bytes");
  if (length.size() > 18 || (!length.empty() && std::stoll(length) > most))
    throw Problem(413, fmt::format("the body has more than {} bytes; expected at most that", most),
                  {}, "too_large");
}

}  // namespace

std::string label_of(const std::string& path) {
  if (!is_known(path)) return "other";
  if (path.starts_with(one_model)) return "/v1/models/ID";
  return path.starts_with(one_context) ? "/v1/contexts/NAME" : path;
}

void check_request(const Request& request, const ServerOptions& options) {
  check_framing(request);
  // Names of contexts are shorter. httplib looks for a route with a std::regex, which goes a call
  // deeper with each byte.
  constexpr std::size_t most_path_bytes = 1024;
  if (request.path.size() > most_path_bytes)
    throw Problem(414, fmt::format("the path has {} bytes; expected at most {}",
                                   request.path.size(), most_path_bytes));
  if (request.path.starts_with(one_response))
    throw Problem(404,
                  "topkv serve stores no responses; POST /v1/responses has the whole response, and "
                  "later requests have the whole conversation",
                  {}, "response_not_found");
  if (!is_known(request.path))
    throw Problem(
        404, fmt::format("there is no {} {}; docs/reference/server.md lists the routes",
                         printable_beginning(request.method), printable_beginning(request.path)));
  const bool open = request.path == "/" || request.path == "/health";
  if (!options.api_key.empty() && !open &&
      !same_secret(bearer_key(request.get_header_value("Authorization")), options.api_key))
    throw Problem(401, "the API key is missing or wrong; expected \"Authorization: Bearer KEY\"",
                  {}, "invalid_api_key");
  if (options.api_key.empty() && is_loopback(options.host) &&
      !is_loopback_host_header(request.get_header_value("Host")))
    throw Problem(
        403,
        "the Host header does not name this machine; ask 127.0.0.1 or localhost, or start "
        "the server with an API key");
  if (const MissingRoute* const missing = missing_route(request.path))
    throw Problem(501, missing->why, {}, "not_supported");
  if (request.method != "POST") {
    const std::string length = request.get_header_value("Content-Length");
    if (request.has_header("Transfer-Encoding") || (!length.empty() && length != "0"))
      throw Problem(400, "expected no body with " + printable_beginning(request.method));
    return;
  }
  if (std::ranges::find(posts, request.path) == std::end(posts)) throw not_for(request);
  check_length(request);
  check_type(request);
  if (request.has_header("Content-Encoding"))
    throw Problem(415,
                  fmt::format("Content-Encoding is \"{}\"; expected a body that is not compressed",
                              printable_beginning(request.get_header_value("Content-Encoding"))));
}

Problem unanswered(const Request& request, int status) {
  if (status == 404 && is_known(request.path)) return not_for(request);
  if (status == 413) return {413, "the request is too large", {}, "too_large"};
  return {status,
          "the request is not valid HTTP/1; expected a request of the routes in "
          "docs/reference/server.md"};
}

}  // namespace topkv::serve
