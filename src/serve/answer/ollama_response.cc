#include "src/serve/answer/ollama_response.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/answer/response.h"
#include "src/serve/request/json_text.h"

namespace topkv::serve {
namespace {

constexpr std::int64_t second = 1'000'000'000;

std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * static_cast<double>(second));
}

nlohmann::ordered_json ollama_head(const std::string& model, std::int64_t now) {
  return {{"model", model}, {"created_at", ollama_time(now)}};
}

void set_text(nlohmann::ordered_json& json, OllamaRoute route, const std::string& text) {
  if (route == OllamaRoute::chat)
    json["message"] = {{"role", "assistant"}, {"content", text}};
  else
    json["response"] = text;
}

}  // namespace

std::string ollama_time(std::int64_t nanoseconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:09}Z",
                     fmt::gmtime(static_cast<std::time_t>(nanoseconds / second)),
                     nanoseconds % second);
}

std::string ollama_loaded(OllamaRoute route, const std::string& model, std::int64_t now) {
  nlohmann::ordered_json json = ollama_head(model, now);
  set_text(json, route, "");
  json["done"] = true;
  json["done_reason"] = "load";
  return json_text(json);
}

OllamaWriter::OllamaWriter(const AnswerRequest& request, OllamaRoute route, std::string id,
                           const AnswerForm& form, bool in_thought, std::int64_t (*now)())
    : route_(route), id_(std::move(id)), model_(request.model), now_(now) {
  if (request.chat) parts_.emplace(form, in_thought, request.tools, request.one_call);
}

AnswerDelta OllamaWriter::delta_of(const Event& event) {
  if (!event.finish.empty()) finish_ = event.finish;
  if (parts_) return delta_of_event(*parts_, event);
  return {.content = event.text};
}

nlohmann::ordered_json OllamaWriter::object_of(const AnswerDelta& delta,
                                               const std::vector<ToldToken>& logprobs, bool done) {
  nlohmann::ordered_json json = ollama_head(model_, now_());
  set_text(json, route_, delta.content);
  nlohmann::ordered_json& text = route_ == OllamaRoute::chat ? json["message"] : json;
  if (!delta.reasoning.empty()) text["thinking"] = delta.reasoning;
  for (const ToolCall& call : delta.calls) {
    const std::size_t number = calls_++;
    nlohmann::ordered_json one;
    one["id"] = call_id(fmt::format("{}/{}", id_, number));
    one["function"]["index"] = number;
    one["function"]["name"] = call.name;
    one["function"]["arguments"] = nlohmann::ordered_json::parse(call.arguments);
    text["tool_calls"].push_back(std::move(one));
  }
  if (!logprobs.empty()) json["logprobs"] = chat_logprobs(logprobs)["content"];
  json["done"] = done;
  return json;
}

std::string OllamaWriter::piece(const Event& event) {
  const AnswerDelta delta = delta_of(event);
  if (delta.empty() && event.logprobs.empty()) return {};
  return json_text(object_of(delta, event.logprobs, false)) + "\n";
}

std::string OllamaWriter::waiting(const ReadingState& /*reading*/) {
  return json_text(object_of({}, {}, false)) + "\n";
}

std::string OllamaWriter::last(nlohmann::ordered_json json, const AnswerTotals& totals) const {
  const AnswerTimes& times = totals.times;
  json["done_reason"] = finish_;
  json["total_duration"] = nanoseconds(times.waited + times.read + times.generated);
  json["load_duration"] = nanoseconds(times.waited);
  json["prompt_eval_count"] = totals.usage.context + totals.usage.prompt;
  json["prompt_eval_duration"] = nanoseconds(times.read);
  json["eval_count"] = totals.usage.generated;
  json["eval_duration"] = nanoseconds(times.generated);
  return json_text(json);
}

std::string OllamaWriter::closing(const AnswerTotals& totals) {
  return last(object_of({}, {}, true), totals) + "\n";
}

std::string OllamaWriter::whole(const std::vector<Event>& events, const AnswerTotals& totals) {
  const Event all = together(events);
  const AnswerDelta delta = delta_of(all);
  return last(object_of(delta, all.logprobs, true), totals);
}

}  // namespace topkv::serve
