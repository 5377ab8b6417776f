// What a request is refused with: an HTTP status and an error in the form of the request's API.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace topkv::serve {

/// Thrown where a request cannot be answered.
class Problem : public std::exception {
 public:
  /// message: one line. param: the field of the body that is meant, code: what programs look at;
  /// each may be empty.
  Problem(int status, std::string message, std::string param = {}, std::string code = {})
      : status_(status),
        message_(std::move(message)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int status_;
  std::string message_;
  std::string param_;
  std::string code_;
};

/// What is being handled, as a problem: the library's errors by what they mean to a client. To be
/// called in a handler.
Problem current_problem();

/// OpenAI's form: {"error": {"message", "type", "param", "code"}}
std::string error_body(const Problem& problem);
/// Ollama's form: {"error": message}
std::string ollama_error_body(const Problem& problem);

}  // namespace topkv::serve
