#include "src/serve/request/problem.h"

#include <new>
#include <nlohmann/json.hpp>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 500:
    case 503:
      return "server_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

Problem current_problem() {
  try {
    throw;
  } catch (const Problem& problem) {
    return problem;
  } catch (const OutOfMemory& error) {
    return {503, printable(error.what()), {}, "out_of_memory"};
  } catch (const InvalidArgument& error) {
    return {400, printable(error.what())};
  } catch (const Unsupported& error) {
    return {400, printable(error.what())};
  } catch (const std::bad_alloc&) {
    return {503, "out of host memory; try again later, or ask for less", {}, "out_of_memory"};
  } catch (const std::exception& error) {
    return {500, printable(error.what())};
  }
}

std::string error_body(const Problem& problem) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json error;
  error["message"] = problem.message();
  error["type"] = type_of(problem.status());
  error["param"] = text_or_null(problem.param());
  error["code"] = text_or_null(problem.code());
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ollama_error_body(const Problem& problem) {
  const nlohmann::ordered_json body = {{"error", problem.message()}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace topkv::serve
