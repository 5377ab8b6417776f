#include "src/serve/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/json_file.h"
#include "src/serve/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using BodyJson = nlohmann::json;

constexpr const char* where = "request body";
constexpr std::int64_t max_messages = 4096;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

/// What changes nothing of an answer.
const std::set<std::string, std::less<>> without_effect = {
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"};

/// Fields of an object; null is as if the field was not there. Those that nobody asked for are
/// refused by done().
class Fields {
 public:
  explicit Fields(const BodyJson& value, std::string of = "")
      : object_(nullptr), of_(std::move(of)) {
    if (!value.is_object())
      throw Problem(400,
                    fmt::format("{}: {} is {}; expected an object", where, of_.empty() ? "it" : of_,
                                shown(value)),
                    of_);
    object_ = &value;
  }

  const BodyJson* find(std::string_view key) {
    known_.emplace(key);
    const auto it = object_->find(key);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }

  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high) {
    const BodyJson* value = find(key);
    if (value == nullptr) return {};
    // Clients of other languages write 64.0 for 64.
    if (value->is_number_float()) {
      constexpr double exact = 9007199254740992;  // 2^53
      const auto number = value->get<double>();
      if (std::abs(number) <= exact && number == std::trunc(number)) {
        const auto whole = static_cast<std::int64_t>(number);
        if (whole >= low && whole <= high) return whole;
      }
    } else if (value->is_number_integer() &&
               !(value->is_number_unsigned() &&
                 value->get<std::uint64_t>() > std::uint64_t{INT64_MAX})) {
      const auto number = value->get<std::int64_t>();
      if (number >= low && number <= high) return number;
    }
    refuse(key, *value,
           high == INT64_MAX ? fmt::format("a whole number from {} on, below 2^63", low)
                             : fmt::format("a whole number from {} to {}", low, high));
  }

  std::optional<double> number(std::string_view key, double low, double high, bool above = false) {
    const BodyJson* value = find(key);
    if (value == nullptr) return {};
    if (value->is_number()) {
      const auto number = value->get<double>();
      if ((above ? number > low : number >= low) && number <= high) return number;
    }
    refuse(key, *value,
           fmt::format("a number {} {} up to {}", above ? "above" : "from", low, high));
  }

  std::optional<bool> flag(std::string_view key) {
    const BodyJson* value = find(key);
    if (value == nullptr) return {};
    if (value->is_boolean()) return value->get<bool>();
    refuse(key, *value, "true or false");
  }

  std::optional<std::string> text(std::string_view key) {
    const BodyJson* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    refuse(key, *value, "a string");
  }

  std::string needed_text(std::string_view key) {
    std::optional<std::string> found = text(key);
    if (!found) throw Problem(400, fmt::format("{}: {} is missing", where, name(key)), name(key));
    return *std::move(found);
  }

  /// Takes the field when it has one of the values that are what topkv does anyway.
  void only(std::string_view key, std::initializer_list<BodyJson> values) {
    const BodyJson* value = find(key);
    if (value == nullptr || std::ranges::find(values, *value) != values.end()) return;
    std::string expected;
    for (const BodyJson& one : values) expected += (expected.empty() ? "" : " or ") + shown(one);
    throw Problem(
        400,
        fmt::format("{}: {} is {}, which topkv serve does not do; leave it out, or give {}", where,
                    name(key), shown(*value), expected),
        name(key), "unsupported_value");
  }

  [[noreturn]] void refuse(std::string_view key, const BodyJson& found,
                           std::string_view expected) const {
    throw Problem(
        400, fmt::format("{}: {} is {}; expected {}", where, name(key), shown(found), expected),
        name(key));
  }

  /// Refuses fields that would change the answer in ways that nobody here knows.
  void done() const {
    for (const auto& [key, value] : object_->items()) {
      if (value.is_null() || known_.contains(key) || (of_.empty() && without_effect.contains(key)))
        continue;
      const std::string unknown = shown(BodyJson(key));  // quoted, ASCII, cut
      throw Problem(400,
                    fmt::format("{}: {}{} is a field that topkv serve does not know; leave it out",
                                where, of_.empty() ? "" : of_ + ": ", unknown),
                    name(unknown.substr(1, unknown.size() - 2)), "unknown_parameter");
    }
  }

 private:
  std::string name(std::string_view key) const {
    return of_.empty() ? std::string(key) : fmt::format("{}.{}", of_, key);
  }

  const BodyJson* object_;
  std::string of_;
  std::set<std::string, std::less<>> known_;
};

BodyJson parse(std::string_view body) {
  try {
    return parse_json(body, where);
  } catch (const FileError& error) {
    throw Problem(400, error.what(), {}, "invalid_json");
  }
}

std::vector<std::string> stops(Fields& fields) {
  const BodyJson* value = fields.find("stop");
  if (value == nullptr) return {};
  const std::string expected =
      fmt::format("a string or up to {}, each of 1 to {} bytes", max_stops, max_stop_bytes);
  const std::vector<BodyJson> given =
      value->is_array() ? value->get<std::vector<BodyJson>>() : std::vector<BodyJson>{*value};
  if (given.size() > max_stops) fields.refuse("stop", *value, expected);
  std::vector<std::string> stops;
  for (const BodyJson& one : given) {
    if (!one.is_string()) fields.refuse("stop", *value, expected);
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || stops.back().size() > max_stop_bytes)
      fields.refuse("stop", *value, expected);
  }
  return stops;
}

/// What both kinds of requests have.
void take_common(Fields& fields, AnswerRequest& request) {
  AnswerOptions& options = request.options;
  request.model = fields.text("model").value_or("");
  request.context = fields.text("context").value_or("");
  options.max_tokens = fields.integer("max_tokens", 1, INT64_MAX);  // --room says how many at most
  options.temperature = fields.number("temperature", 0, 100);
  options.top_p = fields.number("top_p", 0, 1, true);
  options.top_k = fields.integer("top_k", -1, most_tokens);
  if (options.top_k == -1) options.top_k = 0;  // as vLLM's clients turn it off
  options.min_p = fields.number("min_p", 0, 1);
  options.frequency_penalty = fields.number("frequency_penalty", -2, 2);
  options.presence_penalty = fields.number("presence_penalty", -2, 2);
  options.repetition_penalty = fields.number("repetition_penalty", 0, 10, true);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX))
    options.seed = static_cast<std::uint64_t>(*seed);
  options.stop = stops(fields);
  options.choices = fields.integer("n", 1, max_choices).value_or(1);
  request.stream = fields.flag("stream").value_or(false);
  if (const BodyJson* more = fields.find("stream_options")) {
    Fields of_stream(*more, "stream_options");
    request.stream_usage = of_stream.flag("include_usage").value_or(false);
    of_stream.done();
    if (!request.stream)
      throw Problem(400,
                    fmt::format("{}: stream_options is for requests with \"stream\": true", where),
                    "stream_options");
  }
  fields.only("logit_bias", {BodyJson::object()});
}

std::string text_of_content(const BodyJson& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw Problem(400,
                  fmt::format("{}: {} is {}; expected a string, or parts of text", where, name,
                              shown(content)),
                  name);
  std::string text;
  for (const BodyJson& part : content) {
    Fields fields(part, name);
    fields.only("type", {"text"});
    text += fields.needed_text("text");
    fields.done();
  }
  return text;
}

}  // namespace

bool is_context_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

AnswerRequest parse_completion(std::string_view body) {
  const BodyJson json = parse(body);
  Fields fields(json);
  AnswerRequest request;
  take_common(fields, request);
  const BodyJson* prompt = fields.find("prompt");
  if (prompt == nullptr) throw Problem(400, fmt::format("{}: prompt is missing", where), "prompt");
  if (prompt->is_array() && prompt->size() == 1) prompt = &prompt->front();
  if (!prompt->is_string())
    fields.refuse("prompt", *prompt, "one string; send several prompts as requests of their own");
  request.prompt = prompt->get<std::string>();
  request.options.logprobs = fields.integer("logprobs", 0, max_top_logprobs);
  fields.only("echo", {false});
  fields.only("suffix", {""});
  if (const auto best_of = fields.integer("best_of", 1, max_choices))
    fields.only("best_of", {request.options.choices});
  fields.done();
  return request;
}

AnswerRequest parse_chat(std::string_view body) {
  const BodyJson json = parse(body);
  Fields fields(json);
  AnswerRequest request;
  request.chat = true;
  take_common(fields, request);
  if (const auto most = fields.integer("max_completion_tokens", 1, INT64_MAX)) {
    if (request.options.max_tokens && request.options.max_tokens != most)
      throw Problem(
          400,
          fmt::format("{}: max_tokens is {} and max_completion_tokens {}; give one of them", where,
                      *request.options.max_tokens, *most),
          "max_completion_tokens");
    request.options.max_tokens = most;
  }
  const BodyJson* messages = fields.find("messages");
  if (messages == nullptr)
    throw Problem(400, fmt::format("{}: messages is missing", where), "messages");
  if (!messages->is_array() || messages->empty() || std::ssize(*messages) > max_messages)
    fields.refuse("messages", *messages, fmt::format("1 to {} messages", max_messages));
  for (const BodyJson& message : *messages) {
    const std::string name = fmt::format("messages[{}]", request.messages.size());
    Fields of_message(message, name);
    std::string role = of_message.needed_text("role");
    const BodyJson* content = of_message.find("content");
    if (content == nullptr)
      throw Problem(400, fmt::format("{}: {}.content is missing", where, name), name + ".content");
    request.messages.push_back({std::move(role), text_of_content(*content, name + ".content")});
    of_message.done();
  }
  const bool logprobs = fields.flag("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, max_top_logprobs);
  if (top && !logprobs)
    throw Problem(400,
                  fmt::format("{}: top_logprobs is for requests with \"logprobs\": true", where),
                  "top_logprobs");
  if (logprobs) request.options.logprobs = top.value_or(0);
  fields.only("response_format", {BodyJson{{"type", "text"}}});
  fields.only("modalities", {BodyJson::array({"text"})});
  fields.only("tools", {BodyJson::array()});
  fields.only("tool_choice", {"none"});
  fields.done();
  return request;
}

ContextRequest parse_context(std::string_view body) {
  const BodyJson json = parse(body);
  Fields fields(json);
  ContextRequest request;
  request.name = fields.needed_text("name");
  if (!is_context_name(request.name))
    fields.refuse("name", request.name,
                  "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', '.' not first");
  request.text = fields.needed_text("text");
  if (request.text.empty()) fields.refuse("text", request.text, "some text");
  request.chat = fields.flag("chat").value_or(false);
  request.system = fields.text("system").value_or("");
  if (!request.system.empty() && !request.chat)
    throw Problem(400,
                  fmt::format("{}: a plain text has no system message; add \"chat\": true", where),
                  "system");
  fields.done();
  return request;
}

}  // namespace topkv::serve
