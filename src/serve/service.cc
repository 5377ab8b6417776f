#include "src/serve/service.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "src/core/printable.h"
#include "src/serve/kept_prompt.h"
#include "src/serve/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// What requests without a context are answered over.
std::shared_ptr<const ServedContext> nothing_read(const Model& model,
                                                  const ReadingOptions& reading) {
  std::shared_ptr<const Context> context =
      ContextBuilder(model.config().attention, {.capacity = 1, .dtype = reading.prefill.kv_dtype})
          .freeze();
  for (const std::string& spec : {reading.retrieval.index, reading.tail}) {
    if (spec.empty() || spec == "none" || context->has_index(spec)) continue;
    context = context->with_index(spec, {}, model.device());
  }
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
  return json;
}

/// Which a repetition penalty counts.
const std::vector<Token>& tokens_before(const ServedContext& context) {
  if (std::ssize(context.tokens) != context.context->tokens())
    throw Problem(400,
                  fmt::format("context \"{}\" does not tell its tokens, which repetition_penalty "
                              "counts; give 1",
                              context.name),
                  "repetition_penalty");
  return context.tokens;
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
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      memory_(options_.kept_bytes),
      none_(nothing_read(model, options_.reading)),
      contexts_(model, chat_ ? &*chat_ : nullptr, options_.reading, memory_),
      scheduler_(model, with_room(options_.limits, options_.room), memory_, metrics_) {}

std::vector<Token> Service::tokens_of(const AnswerRequest& request,
                                      const ServedContext& context) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  const bool none = context.name.empty();
  if (request.chat) {
    if (!chat_)
      throw Problem(400, "the model has no chat template; ask POST /v1/completions", "messages",
                    "no_chat_template");
    if (none) return tokenizer.encode(chat_->render(request.messages, true));
    if (!context.end.chat)
      throw Problem(400,
                    fmt::format("context \"{}\" is a plain text, which POST /v1/completions "
                                "continues; for chats it is to be read in the chat template: topkv "
                                "prefill --chat, or \"chat\": true",
                                context.name),
                    "context", "not_a_chat");
    return tokens_of_conversation(tokenizer, context.end, *chat_, request.messages);
  }
  if (!none && context.end.chat)
    throw Problem(
        400,
        fmt::format("context \"{}\" is in the chat template; ask POST /v1/chat/completions",
                    context.name),
        "context", "not_plain");
  std::vector<Token> tokens = none ? beginning_tokens(tokenizer) : std::vector<Token>();
  const std::vector<Token> more = tokenizer.encode(context.end.text_left + request.prompt);
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::shared_ptr<Answer> Service::answer(const AnswerRequest& request) {
  if (!request.model.empty() && request.model != options_.model_name)
    throw Problem(404,
                  fmt::format("there is no model \"{}\"; \"{}\" is served",
                              printable_beginning(request.model), options_.model_name),
                  "model", "model_not_found");
  Question question;
  question.context = request.context.empty() ? none_ : contexts_.find(request.context);
  const AnswerOptions& asked = request.options;
  question.options.max_tokens = asked.max_tokens.value_or(request.chat ? 1024 : 128);
  question.options.sampling = model_.config().sampling;
  SamplingOptions& sampling = question.options.sampling;
  if (asked.temperature) sampling.temperature = *asked.temperature;
  if (asked.top_p) sampling.top_p = *asked.top_p;
  if (asked.top_k) sampling.top_k = *asked.top_k;
  if (asked.min_p) sampling.min_p = *asked.min_p;
  if (asked.frequency_penalty) sampling.frequency_penalty = *asked.frequency_penalty;
  if (asked.presence_penalty) sampling.presence_penalty = *asked.presence_penalty;
  if (asked.repetition_penalty) sampling.repetition_penalty = *asked.repetition_penalty;
  if (sampling.repetition_penalty != 1) question.options.before = tokens_before(*question.context);
  question.options.stop = asked.stop;
  question.options.logprobs = asked.logprobs.value_or(-1);
  sampling.seed = asked.seed ? *asked.seed : std::random_device()();
  question.choices = static_cast<std::size_t>(asked.choices);
  try {
    question.prompt = tokens_of(request, *question.context);
  } catch (const FileError& error) {  // the template's, or the tokenizer's, for this text
    throw Problem(400, printable(error.what()), request.chat ? "messages" : "prompt");
  }
  const char* const param = request.chat ? "messages" : "prompt";
  if (question.prompt.empty())
    throw Problem(400, "the prompt has no tokens; give it some text", param);
  const auto prompt = std::ssize(question.prompt);
  if (!asked.max_tokens && prompt < options_.room)
    question.options.max_tokens = std::min(question.options.max_tokens, options_.room - prompt);
  if (prompt >= options_.room)
    throw Problem(400,
                  fmt::format("{} has {} tokens behind the context; expected 1 to {}: it and its "
                              "answer have {} together (the server's --room)",
                              param, prompt, options_.room - 1, options_.room),
                  param, "context_length_exceeded");
  if (question.options.max_tokens > options_.room - prompt)
    throw Problem(400,
                  fmt::format("max_tokens is {}; expected 1 to {}: {} has {} tokens behind the "
                              "context, and it and its answer have {} together (the server's "
                              "--room)",
                              question.options.max_tokens, options_.room - prompt, param, prompt,
                              options_.room),
                  "max_tokens", "context_length_exceeded");
  return scheduler_.ask(std::move(question));
}

void Service::remove_context(const std::string& name) {
  contexts_.remove(name);
  memory_.kept.give_up_unserved();
}

std::string Service::models() const {
  Json model;
  model["id"] = options_.model_name;
  model["object"] = "model";
  model["created"] = started_;
  model["owned_by"] = "topkv";
  model["chat"] = chat_.has_value();
  Json json;
  json["object"] = "list";
  json["data"] = Json::array({std::move(model)});
  return text_of(json);
}

std::string Service::all_contexts() const {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const ContextInfo& info : contexts_.list()) json["data"].push_back(json_of(info));
  return text_of(json);
}

std::string Service::one_context(const std::string& name) const {
  return text_of(json_of(contexts_.info(name)));
}

std::string Service::metrics_text() const {
  std::string more = fmt::format(
      "# HELP topkv_kept_sessions Sessions of ended answers, kept for prompts that go on from "
      "them.\n"
      "# TYPE topkv_kept_sessions gauge\ntopkv_kept_sessions {}\n"
      "# HELP topkv_kept_sessions_bytes Memory of their rows.\n"
      "# TYPE topkv_kept_sessions_bytes gauge\ntopkv_kept_sessions_bytes {}\n",
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
