#include "src/serve/run/service.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/text/printable.h"
#include "src/serve/request/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::ordered_json;

std::string body_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// What requests without a context are answered over.
std::shared_ptr<const ServedContext> nothing_read(const Model& model,
                                                  const ReadingOptions& reading) {
  std::shared_ptr<const Context> context =
      ContextBuilder(model.config().attention, {.capacity = 1, .dtype = reading.prefill.kv_dtype})
          .freeze()
          ->ready_for(reading.retrieval, {}, model.device());
  return std::make_shared<const ServedContext>(
      ServedContext{.context = std::move(context), .retrieval = reading.retrieval});
}

Json json_of(const ContextInfo& info) {
  Json json;
  json["name"] = info.name;
  json["object"] = "context";
  json["state"] = info.state;
  json["chat"] = info.chat;
  json["tokens"] = info.tokens;
  json["done"] = info.done;
  json["total"] = info.tokens;
  json["rows_bytes"] = info.rows_bytes;
  json["index_bytes"] = info.index_bytes;
  json["index"] = info.index;
  json["error"] = info.error.empty() ? Json(nullptr) : Json(info.error);
  json["warning"] = info.warning.empty() ? Json(nullptr) : Json(info.warning);
  return json;
}

/// What is said of the model under each of its names.
struct ModelFacts {
  std::int64_t started;
  bool chat;
  std::int64_t room;
  std::int64_t reach;
};

/// context: the one that is named behind the model; null: none.
Json model_json(const std::string& name, const ModelFacts& facts, const ContextInfo* context) {
  Json model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = facts.started;
  model["owned_by"] = "topkv";
  model["chat"] = facts.chat && (context == nullptr || context->chat);
  model["context_length"] = facts.room;  // other servers' names of one number
  model["max_model_len"] = facts.room;
  model["context"] = context == nullptr ? Json(nullptr) : Json(context->name);
  model["context_tokens"] = context == nullptr ? 0 : context->tokens;
  model["reach"] = facts.reach;
  return model;
}

SchedulerLimits with_room(SchedulerLimits limits, std::int64_t room) {
  limits.room = room;
  return limits;
}

std::string for_label(const std::string& name) { return name.empty() ? "(none)" : name; }

}  // namespace

Service::Service(const Model& model, std::optional<ChatTemplate> chat, ServiceOptions options)
    : model_(model),
      chat_(std::move(chat)),
      options_(std::move(options)),
      names_(options_.model_name, options_.aliases),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      form_(chat_ ? answer_form(chat_->source()) : AnswerForm{}),
      memory_(options_.kept_bytes),
      none_(nothing_read(model, options_.reading)),
      contexts_(model, chat_ ? &*chat_ : nullptr, options_.reading, memory_),
      scheduler_(model, with_room(options_.limits, options_.room), memory_, metrics_,
                 options_.on_turns) {}

Problem Service::no_model(const std::string& name) const {
  return {404,
          fmt::format("there is no model \"{}\"; \"{}\" is served, and GET /v1/models lists all "
                      "names",
                      printable_beginning(name), options_.model_name),
          "model", "model_not_found"};
}

std::string Service::context_named(const std::string& model) const {
  const std::optional<NamedModel> named = names_.find(model);
  if (!named) throw no_model(model);
  // Ollama's clients put it behind names that have no tag.
  if (named->context == latest_tag && !contexts_.has(latest_tag)) return {};
  return named->context;
}

void Service::remove_context(const std::string& name) {
  contexts_.remove(name);
  memory_.kept.give_up_unserved();
}

std::string Service::models() const {
  const ModelFacts facts = {started_, chat_.has_value(), options_.room, model_.config().reach()};
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const std::string& name : names_.all())
    json["data"].push_back(model_json(name, facts, nullptr));
  for (const ContextInfo& info : contexts_.list())
    if (info.state == "ready")
      json["data"].push_back(model_json(names_.with_context(info.name), facts, &info));
  return body_of(json);
}

std::string Service::one_model(const std::string& name) const {
  const ModelFacts facts = {started_, chat_.has_value(), options_.room, model_.config().reach()};
  const std::string context = context_named(name);
  if (context.empty()) return body_of(model_json(name, facts, nullptr));
  const ContextInfo info = contexts_.info(context);
  contexts_.find(context);  // throws Problem unless it is ready
  return body_of(model_json(name, facts, &info));
}

std::string Service::all_contexts() const {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const ContextInfo& info : contexts_.list()) json["data"].push_back(json_of(info));
  return body_of(json);
}

std::string Service::one_context(const std::string& name) const {
  return body_of(json_of(contexts_.info(name)));
}

std::string Service::metrics_text() const {
  std::string more = fmt::format(
      "# HELP topkv_kept_sessions Sessions of ended answers, kept for prompts that continue "
      "them.\n# TYPE topkv_kept_sessions gauge\ntopkv_kept_sessions {}\n# HELP "
      "topkv_kept_sessions_bytes Memory of the rows of kept sessions.\n# TYPE "
      "topkv_kept_sessions_bytes gauge\ntopkv_kept_sessions_bytes {}\n",
      memory_.kept.count(), memory_.kept.bytes());
  more +=
      "# HELP topkv_context_bytes Memory of a context's rows and indices.\n"
      "# TYPE topkv_context_bytes gauge\n";
  for (const ContextInfo& info : contexts_.list())
    more += fmt::format("topkv_context_bytes{{context=\"{}\"}} {}\n", for_label(info.name),
                        info.rows_bytes + info.index_bytes);
  return metrics_.text(more);
}

}  // namespace topkv::serve
