#include "src/serve/run/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace topkv::serve {
namespace {

/// Of this process; 0 where the system does not tell.
std::int64_t resident_bytes() {
  long long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*d %lld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * ::sysconf(_SC_PAGESIZE);
}

class Text {
 public:
  void family(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class Value>
  void value(const std::string& name, const Value& value) {
    text_ += fmt::format("{} {}\n", name, value);
  }
  template <class Value>
  void one(const char* name, const char* type, const char* help, const Value& of) {
    family(name, type, help);
    value(name, of);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

void Metrics::count_request(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  Sum& sum = requests_[{path, status}];
  ++sum.count;
  sum.seconds += seconds;
}

void Metrics::count_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ++first_tokens_.count;
  first_tokens_.seconds += seconds;
}

void Metrics::count_step(std::int64_t sessions, double seconds) {
  const std::lock_guard lock(mutex_);
  const auto bound = std::ranges::lower_bound(step_bounds, sessions);
  ++steps_.at(static_cast<std::size_t>(bound - step_bounds.begin()));
  stepped_ += sessions;
  step_seconds = step_seconds + seconds;
}

std::string Metrics::text(const std::string& more) const {
  Text text;
  const std::lock_guard lock(mutex_);
  text.family("topkv_requests_total", "counter", "Requests answered, by path and status.");
  for (const auto& [key, sum] : requests_)
    text.value(
        fmt::format("topkv_requests_total{{path=\"{}\",status=\"{}\"}}", key.first, key.second),
        sum.count);
  text.family("topkv_request_seconds", "summary",
              "From a request's headers to the end of its answer.");
  for (const auto& [key, sum] : requests_) {
    const std::string of = fmt::format("{{path=\"{}\",status=\"{}\"}}", key.first, key.second);
    text.value("topkv_request_seconds_sum" + of, sum.seconds);
    text.value("topkv_request_seconds_count" + of, sum.count);
  }
  text.family("topkv_first_token_seconds", "summary",
              "From the end of its wait to an answer's first token.");
  text.value("topkv_first_token_seconds_sum", first_tokens_.seconds);
  text.value("topkv_first_token_seconds_count", first_tokens_.count);
  text.one("topkv_disconnected_total", "counter",
           "Clients that left before their answer was complete.", disconnected.load());
  text.one("topkv_answers_waiting", "gauge", "Answers in the queue.", waiting.load());
  text.one("topkv_answers_running", "gauge", "Answers that are being generated.", running.load());
  text.one("topkv_session_rows_bytes", "gauge", "Most bytes that rows of running answers may take.",
           session_bytes.load());
  text.one("topkv_prompt_tokens_total", "counter", "Tokens of prompts, without contexts.",
           prompt_tokens.load());
  text.one("topkv_kept_tokens_total", "counter",
           "Tokens of prompts that were not read because a kept session had them.",
           kept_tokens.load());
  text.one("topkv_generated_tokens_total", "counter", "Tokens generated.", generated_tokens.load());
  text.family("topkv_step_sessions", "histogram",
              "Sessions in a joint step; 0 if only a prompt was read.");
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps += steps_[i];
    const std::string bound = i < step_bounds.size() ? std::to_string(step_bounds[i]) : "+Inf";
    text.value(fmt::format("topkv_step_sessions_bucket{{le=\"{}\"}}", bound), steps);
  }
  text.value("topkv_step_sessions_sum", stepped_);
  text.value("topkv_step_sessions_count", steps);
  text.one("topkv_step_seconds_total", "counter", "Time in steps, prompts among them.",
           step_seconds.load());
  text.one("process_resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes());
  return text.take() + more;
}

}  // namespace topkv::serve
