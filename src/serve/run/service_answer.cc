// From a request to questions of the scheduler.
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "src/core/text/printable.h"
#include "src/serve/answer/echo.h"
#include "src/serve/request/problem.h"
#include "src/serve/run/prompt_boundary.h"
#include "src/serve/run/service.h"
#include "src/serve/run/thinking.h"
#include "topkv/error.h"
#include "topkv/grammar.h"

namespace topkv::serve {
namespace {

/// Most log-probabilities that a response may have for echoed prompts, whose tokens are known, and
/// for generated tokens, of which there may be fewer than max_tokens.
constexpr std::int64_t max_prompt_logprobs = std::int64_t{1} << 20;
constexpr std::int64_t max_answer_logprobs = std::int64_t{1} << 22;

const char* param_of(const AnswerRequest& request) { return request.chat ? "messages" : "prompt"; }

/// Which a repetition penalty counts.
const std::vector<Token>& tokens_before(const ServedContext& context) {
  if (std::ssize(context.tokens) != context.context->tokens())
    throw Problem(
        400,
        fmt::format("context \"{}\" has no token ids for repetition_penalty to count; give 1",
                    context.name),
        "repetition_penalty");
  return context.tokens;
}

void check_id(Token id, std::int64_t vocabulary, const char* param) {
  if (id < vocabulary) return;
  throw Problem(400,
                fmt::format("{} has the token id {}; expected ids of the model's vocabulary, from "
                            "0 to {}",
                            param, id, vocabulary - 1),
                param);
}

/// Throws when a response could have more log-probabilities than it may.
void check_logprobs(const AnswerRequest& request, const std::vector<Question>& questions) {
  if (!request.options.logprobs) return;
  const std::int64_t per_token = request.options.choices * (1 + *request.options.logprobs);
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
  for (const Question& question : questions) {
    prompt += std::ssize(question.prompt) * per_token;
    generated += question.options.max_tokens * per_token;
  }
  if (request.echo && prompt > max_prompt_logprobs)
    throw Problem(400,
                  fmt::format("echo with logprobs would give {} log-probabilities of prompts; "
                              "expected at most {}: send fewer prompts at a time, or a smaller "
                              "logprobs",
                              prompt, max_prompt_logprobs),
                  "logprobs");
  if (generated > max_answer_logprobs)
    throw Problem(400,
                  fmt::format("the answers could have {} log-probabilities; expected at most {}: "
                              "ask for fewer answers, a smaller max_tokens or fewer logprobs",
                              generated, max_answer_logprobs),
                  "logprobs");
}

}  // namespace

std::string Service::context_of(const AnswerRequest& request) const {
  if (request.model.empty()) return request.context;
  const std::string named = context_named(request.model);
  if (named.empty()) return request.context;
  if (!request.context.empty() && request.context != named)
    throw Problem(
        400,
        fmt::format("model names the context \"{}\", and context is \"{}\"; give only one of them",
                    named, printable_beginning(request.context)),
        "context");
  return named;
}

bool Service::in_template(const AnswerRequest& request) const {
  const std::string name = context_of(request);
  return name.empty() ? chat_.has_value() : contexts_.find(name)->end.chat;
}

GenerateOptions Service::options_of(const AnswerRequest& request,
                                    const ServedContext& context) const {
  const AnswerOptions& asked = request.options;
  GenerateOptions options;
  options.max_tokens = asked.max_tokens.value_or(asked.unlimited ? options_.room
                                                 : request.chat  ? 1024
                                                                 : 128);
  options.sampling = model_.config().sampling;
  SamplingOptions& sampling = options.sampling;
  if (asked.temperature) sampling.temperature = *asked.temperature;
  if (asked.top_p) sampling.top_p = *asked.top_p;
  if (asked.top_k) sampling.top_k = *asked.top_k;
  if (asked.min_p) sampling.min_p = *asked.min_p;
  if (asked.frequency_penalty) sampling.frequency_penalty = *asked.frequency_penalty;
  if (asked.presence_penalty) sampling.presence_penalty = *asked.presence_penalty;
  if (asked.repetition_penalty) sampling.repetition_penalty = *asked.repetition_penalty;
  if (sampling.repetition_penalty != 1) options.before = tokens_before(context);
  for (const TokenBias& one : asked.logit_bias)
    check_id(one.token, model_.config().vocab_size, "logit_bias");
  sampling.logit_bias = asked.logit_bias;
  options.stop = asked.stop;
  options.draft = options_.draft;
  options.draft_model = options_.draft_model;
  if (request.chat) options.spelled = form_.spelled(model_.tokenizer(), !request.tools.empty());
  options.logprobs = asked.logprobs.value_or(-1);
  if (request.echo) options.prompt_logprobs = options.logprobs;
  if (!request.schema.text.empty()) options.grammar = grammar_of(request.schema);
  return options;
}

std::shared_ptr<const Grammar> Service::grammar_of(const AnswerSchema& schema) const {
  try {
    return Grammar::json_schema(model_, schema.text);
  } catch (const Error& error) {
    throw Problem(400, fmt::format("{}: {}", schema.field, printable(error.what())), schema.field,
                  "invalid_json_schema");
  }
}

std::vector<Token> Service::tokens_of_chat(const AnswerRequest& request,
                                           const ServedContext& context) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  if (!chat_)
    throw Problem(400, "the model has no chat template; use POST /v1/completions", "messages",
                  "no_chat_template");
  const std::string variables = variables_with_thinking(request, chat_->source(), form_);
  if (context.name.empty())
    return tokenizer.encode(chat_->render(request.messages, true, variables));
  if (!context.end.chat)
    throw Problem(
        400,
        fmt::format("context \"{}\" is a plain text, which POST /v1/completions continues; for "
                    "chats read it in the chat template: topkv prefill --chat, or \"chat\": true",
                    context.name),
        "context", "not_a_chat");
  return tokens_of_conversation(tokenizer, context.end, *chat_, request.messages, variables);
}

void Service::check_plain(const ServedContext& context) const {
  if (context.name.empty() || !context.end.chat) return;
  throw Problem(400,
                fmt::format("context \"{}\" is in the chat template; use POST /v1/chat/completions",
                            context.name),
                "context", "not_plain");
}

void Service::take_prompt(const Prompt& prompt, const AnswerRequest& request,
                          Question& question) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  const ServedContext& context = *question.context;
  const std::string& left = context.end.text_left;
  std::vector<Token>& tokens = question.prompt;
  if (const auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
    for (const Token id : *ids) check_id(id, model_.config().vocab_size, "prompt");
    if (!left.empty()) tokens = tokenizer.encode(left);
    question.unscored = std::ssize(tokens);
    tokens.insert(tokens.end(), ids->begin(), ids->end());
    if (request.echo) question.echo = tokenizer.decode(*ids);
    return;
  }
  const std::string& text = std::get<std::string>(prompt);
  if (context.name.empty()) tokens = tokenizer.beginning_tokens();
  const std::vector<Token> more = tokenizer.encode(left + text);
  tokens.insert(tokens.end(), more.begin(), more.end());
  if (!request.echo) return;
  question.echo = text;
  question.unscored = tokens_within(tokenizer, more, left);
}

std::vector<Question> Service::questions_of(const AnswerRequest& request,
                                            std::shared_ptr<const ServedContext> context) const {
  Question form;
  form.options = options_of(request, *context);
  form.choices = static_cast<std::size_t>(request.options.choices);
  form.score_end = !request.chat;
  form.context = std::move(context);
  std::vector<Question> questions;
  const auto add = [&](const auto& take_tokens) {
    Question& question = questions.emplace_back(form);
    question.options.sampling.seed =
        request.options.seed ? *request.options.seed : std::random_device()();
    take_tokens(question);
    if (question.prompt.empty())
      throw Problem(400, "the prompt has no tokens; give it some text", param_of(request));
    check_room(request, question);
  };
  try {
    if (request.chat) {
      add([&](Question& question) { question.prompt = tokens_of_chat(request, *form.context); });
    } else {
      check_plain(*form.context);
      for (const Prompt& prompt : request.prompts)
        add([&](Question& question) { take_prompt(prompt, request, question); });
    }
  } catch (const FileError& error) {  // the template's, or the tokenizer's, for this text
    throw Problem(400, printable(error.what()), param_of(request));
  } catch (const InvalidArgument& error) {  // messages that the template does not take, or loses
    throw Problem(400, printable(error.what()), param_of(request));
  }
  return questions;
}

std::string Service::left_out(const AnswerRequest& request) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  std::string line;
  for (const Prompt& prompt : request.prompts) {
    const auto* const text = std::get_if<std::string>(&prompt);
    if (line.empty() && text != nullptr) line = tokenizer.left_out(*text);
  }
  for (const ChatMessage& message : request.messages)
    if (line.empty()) line = tokenizer.left_out(message.content);
  return line;
}

void Service::check_room(const AnswerRequest& request, Question& question) const {
  const auto prompt = std::ssize(question.prompt);
  const std::int64_t room = options_.room;
  std::int64_t& most = question.options.max_tokens;
  if (!request.options.max_tokens && prompt < room) most = std::min(most, room - prompt);
  if (prompt < room && most <= room - prompt) return;
  // litellm looks for the first words, LangChain for the code within the message.
  const std::string length = fmt::format(
      "This model's maximum context length is {} tokens, for a prompt and its answer together, "
      "beside the context (the server's --room)",
      room);
  if (prompt >= room)
    throw Problem(
        400,
        fmt::format("{}; {} has {} tokens, expected 1 to {}: shorten it (context_length_exceeded)",
                    length, param_of(request), prompt, room - 1),
        param_of(request), "context_length_exceeded");
  throw Problem(
      400,
      fmt::format("{}; {} has {} tokens and max_tokens is {}, expected up to {}: lower it, "
                  "or shorten {} (context_length_exceeded)",
                  length, param_of(request), prompt, most, room - prompt, param_of(request)),
      "max_tokens", "context_length_exceeded");
}

Accepted Service::answer(const AnswerRequest& request) {
  Accepted accepted;
  accepted.context = context_of(request);
  const std::shared_ptr<const ServedContext> context =
      accepted.context.empty() ? none_ : contexts_.find(accepted.context);
  if (request.answers() > options_.limits.queue)
    throw Problem(400,
                  fmt::format("the request asks for {} answers; expected at most {} (the server's "
                              "--max-queue): send fewer prompts at a time, or a smaller n",
                              request.answers(), options_.limits.queue),
                  request.prompts.size() > 1 ? "prompt" : "n", "too_many_answers");
  std::vector<Question> questions = questions_of(request, context);
  check_logprobs(request, questions);
  std::int64_t longest = 0;
  for (const Question& question : questions)
    longest = std::max(longest, std::ssize(question.prompt) + question.options.max_tokens);
  if (std::string beyond = model_.config().beyond_reach(context->context->tokens() + longest);
      !beyond.empty())
    accepted.warning = "context, prompt and max_tokens together: " + beyond;
  if (request.schema.text.empty())
    accepted.form = form_;
  else if (request.schema.calls)
    accepted.form.calls = AnswerForm::Calls::object;
  if (request.chat)
    accepted.in_thought = form_.ends_in_thought(model_.tokenizer(), questions.front().prompt);
  if (!request.schema.text.empty() && (form_.channels || accepted.in_thought))
    throw Problem(
        400,
        fmt::format("{}: the model's chat template begins each answer with something else "
                    "(thinking, or a channel), and an answer conforms from its first "
                    "token on; use another model",
                    request.schema.field),
        request.schema.field, "unsupported_value");
  if (const std::string lost = left_out(request); !lost.empty())
    accepted.warning += (accepted.warning.empty() ? "" : "; ") + lost;
  accepted.answer = scheduler_.ask(std::move(questions));
  return accepted;
}

}  // namespace topkv::serve
