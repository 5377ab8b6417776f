#include "src/serve/http/handling.h"

#include <fmt/format.h>

#include <atomic>
#include <ctime>
#include <iterator>
#include <random>

#include "src/serve/http/request_check.h"

namespace topkv::serve {

thread_local Note note;

void set_problem(const httplib::Request& request, httplib::Response& response,
                 const Problem& problem) {
  const int status = problem.status();
  response.status = status;
  if (status == 429 || status == 503) response.set_header("Retry-After", "1");
  if (status == 501) response.set_header("x-should-retry", "false");  // to OpenAI's packages
  if (status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(
      request.path.starts_with(ollama_api) ? ollama_error_body(problem) : error_body(problem),
      json_type);
}

std::string new_id(const std::string& prefix) {
  static std::atomic<std::uint64_t> count = 0;
  static const std::uint64_t start = (std::uint64_t{std::random_device()()} << 32) ^
                                     static_cast<std::uint64_t>(std::time(nullptr));
  return fmt::format("{}{:016x}{:06x}", prefix, start, ++count);
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

}  // namespace topkv::serve
