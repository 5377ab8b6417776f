#include "src/serve/answer/responses_response.h"

#include <fmt/format.h>

#include <utility>

#include "src/serve/answer/response.h"
#include "src/serve/request/json_text.h"

namespace topkv::serve {
namespace {

/// What is thought, and what is said: items of one part of text.
constexpr const char* reasoning_item = "reasoning";
constexpr const char* message_item = "message";
constexpr const char* call_item = "function_call";

bool is_message(const std::string& item) { return item == message_item; }

nlohmann::ordered_json part_of(const std::string& item, const std::string& text) {
  if (!is_message(item)) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", nlohmann::ordered_json::array()},
          {"logprobs", nlohmann::ordered_json::array()}};
}

/// The name of an event about the text of an item.
std::string text_event(const std::string& item, const char* what) {
  return fmt::format("response.{}_text.{}", is_message(item) ? "output" : "reasoning", what);
}

}  // namespace

ResponsesWriter::ResponsesWriter(const ResponsesRequest& request, std::string id,
                                 std::int64_t created, const std::string& model,
                                 const AnswerForm& form, bool in_thought)
    : id_(std::move(id)), parts_(form, in_thought, request.answer.tools, request.answer.one_call) {
  response_["id"] = "resp_" + id_;
  response_["object"] = "response";
  response_["created_at"] = created;
  response_["status"] = "in_progress";
  response_["model"] = model;
  response_["output"] = Json::array();
  for (const char* key : {"error", "incomplete_details", "previous_response_id", "usage"})
    response_[key] = nullptr;
  response_["background"] = false;
  response_["store"] = false;
  response_["truncation"] = "disabled";
  response_["text"]["format"]["type"] = "text";
  response_.update(request.repeated);
}

void ResponsesWriter::tell(const char* type, Json fields) {
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  events_ += fmt::format("event: {}\n", type) + sse(json_text(event));
}

void ResponsesWriter::tell_response(const char* type) { tell(type, {{"response", response_}}); }

std::string ResponsesWriter::told() { return std::exchange(events_, {}); }

nlohmann::ordered_json ResponsesWriter::place() const {
  const std::size_t index = response_["output"].size() - 1;
  return {{"item_id", response_["output"].back()["id"]}, {"output_index", index}};
}

nlohmann::ordered_json ResponsesWriter::text_place() const {
  Json at = place();
  at["content_index"] = 0;
  return at;
}

nlohmann::ordered_json& ResponsesWriter::open_item(const char* type, const char* prefix,
                                                   Json fields) {
  close_item();
  open_ = type;
  const std::size_t index = response_["output"].size();
  Json item = {{"id", fmt::format("{}_{}{:02}", prefix, id_, index)},
               {"type", type},
               {"status", "in_progress"}};
  item.update(fields);
  if (streams_) tell("response.output_item.added", {{"output_index", index}, {"item", item}});
  response_["output"].push_back(std::move(item));
  return response_["output"].back();
}

void ResponsesWriter::close_item() {
  if (open_.empty()) return;
  Json& item = response_["output"].back();
  item["status"] = finish_ == "length" ? "incomplete" : "completed";
  const std::string type = std::exchange(open_, {});
  if (!streams_) return;
  if (type != call_item) {
    const Json& part = item["content"][0];
    Json at = text_place();
    Json text = at;
    text["text"] = part["text"];
    if (is_message(type)) text["logprobs"] = Json::array();
    tell(text_event(type, "done").c_str(), std::move(text));
    at["part"] = part;
    tell("response.content_part.done", std::move(at));
  }
  tell("response.output_item.done",
       {{"output_index", response_["output"].size() - 1}, {"item", item}});
}

void ResponsesWriter::add_text(const char* item, const std::string& text) {
  if (text.empty()) return;
  if (open_ != item) {
    if (is_message(item))
      open_item(item, "msg", {{"role", "assistant"}, {"content", Json::array()}});
    else
      open_item(item, "rs", {{"summary", Json::array()}, {"content", Json::array()}});
    const Json part = part_of(item, "");
    response_["output"].back()["content"].push_back(part);
    if (streams_) {
      Json at = text_place();
      at["part"] = part;
      tell("response.content_part.added", std::move(at));
    }
  }
  Json& kept = response_["output"].back()["content"][0]["text"];
  kept.get_ref<std::string&>() += text;
  if (!streams_) return;
  Json delta = text_place();
  delta["delta"] = text;
  if (is_message(item)) delta["logprobs"] = Json::array();
  tell(text_event(item, "delta").c_str(), std::move(delta));
}

void ResponsesWriter::add_call(const ToolCall& call) {
  const std::string name = call_id(fmt::format("{}/{}", id_, response_["output"].size()));
  Json& item =
      open_item(call_item, "fc", {{"call_id", name}, {"name", call.name}, {"arguments", ""}});
  item["arguments"] = call.arguments;
  if (streams_) {
    Json delta = place();
    Json done = delta;
    delta["delta"] = call.arguments;
    tell("response.function_call_arguments.delta", std::move(delta));
    done["name"] = call.name;
    done["arguments"] = call.arguments;
    tell("response.function_call_arguments.done", std::move(done));
  }
  close_item();
}

void ResponsesWriter::take(const Event& event) {
  const AnswerDelta delta = delta_of_event(parts_, event);
  add_text(reasoning_item, delta.reasoning);
  add_text(message_item, delta.content);
  for (const ToolCall& call : delta.calls) add_call(call);
  if (!event.finish.empty()) finish_ = event.finish;
}

void ResponsesWriter::end(const AnswerTotals& totals) {
  close_item();
  const Usage& usage = totals.usage;
  const std::int64_t read = usage.context + usage.prompt;
  response_["status"] = finish_ == "length" ? "incomplete" : "completed";
  if (finish_ == "length") response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  Json& json = response_["usage"] = {{"input_tokens", read}};
  json["input_tokens_details"]["cached_tokens"] = usage.context + usage.kept;
  json["output_tokens"] = usage.generated;
  json["output_tokens_details"]["reasoning_tokens"] = 0;  // are not counted apart
  json["total_tokens"] = read + usage.generated;
}

std::string ResponsesWriter::opening() {
  tell_response("response.created");
  tell_response("response.in_progress");
  return told();
}

std::string ResponsesWriter::piece(const Event& event) {
  take(event);
  return told();
}

std::string ResponsesWriter::waiting(const ReadingState& reading) { return sse_comment(reading); }

std::string ResponsesWriter::closing(const AnswerTotals& totals) {
  end(totals);
  tell_response(finish_ == "length" ? "response.incomplete" : "response.completed");
  return told();
}

std::string ResponsesWriter::broken(const Problem& problem) {
  response_["status"] = "failed";
  response_["error"] = {{"code", "server_error"}, {"message", problem.message()}};
  tell_response("response.failed");
  return told();
}

std::string ResponsesWriter::whole(const std::vector<Event>& events, const AnswerTotals& totals) {
  streams_ = false;
  take(together(events));
  end(totals);
  return json_text(response_);
}

}  // namespace topkv::serve
