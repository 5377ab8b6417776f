// What the server does, apart from HTTP: requests to questions, and what it tells of itself.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/serve/answer/answer_form.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"
#include "src/serve/run/contexts.h"
#include "src/serve/run/metrics.h"
#include "src/serve/run/promised_memory.h"
#include "src/serve/run/scheduler.h"
#include "src/serve/run/served_names.h"
#include "topkv/chat_template.h"
#include "topkv/draft_model.h"
#include "topkv/model.h"

namespace topkv::serve {

/// What is told of a model's weights.
struct ServedWeights {
  std::string fingerprint = {};  ///< Model::fingerprint
  std::string format = {};       ///< "gguf" or "safetensors"
  std::string quantised = {};    ///< DevicePlan::quantised
  std::int64_t bytes = 0;        ///< DevicePlan::weights_bytes
};

struct ServiceOptions {
  std::string model_name;
  ServedWeights weights = {};
  std::vector<std::string> aliases = {};  ///< other names of the model
  std::int64_t room = 16384;              ///< tokens of a prompt and its answer at most
  /// Host memory for sessions of ended answers, for prompts that go on from them; 0: none are kept.
  std::int64_t kept_bytes = 0;
  Draft draft = Draft::automatic;  ///< of all answers
  std::shared_ptr<const DraftModel> draft_model = {};
  SchedulerLimits limits;  ///< their room is the one above
  ReadingOptions reading;
  TurnsFn on_turns = {};  ///< may be empty
};

/// A request that is answered.
struct Accepted {
  std::shared_ptr<Answer> answer;
  std::string context;      ///< name of the one that it is answered over; empty: none
  std::string warning;      ///< what its client should know, one line of ASCII; empty: nothing
  AnswerForm form;          ///< of the answers, in a chat
  bool in_thought = false;  ///< the prompt ends where thinking has begun
};

/// Safe from many threads.
class Service {
 public:
  /// The model outlives it. chat: its template, if it has one.
  Service(const Model& model, std::optional<ChatTemplate> chat, ServiceOptions options);

  Contexts& contexts() { return contexts_; }
  const Contexts& contexts() const { return contexts_; }
  Scheduler& scheduler() { return scheduler_; }
  Metrics& metrics() { return metrics_; }
  const ServiceOptions& options() const { return options_; }

  /// Throws Problem.
  Accepted answer(const AnswerRequest& request);

  /// Whether a request that is neither is answered in the chat template, by its model and context.
  /// Throws Problem.
  bool in_template(const AnswerRequest& request) const;

  /// As Contexts::remove; sessions that are kept over the context go with it.
  void remove_context(const std::string& name);

  // Bodies of responses.
  std::string models() const;
  /// Throws Problem 404.
  std::string one_model(const std::string& name) const;
  std::string all_contexts() const;
  std::string one_context(const std::string& name) const;
  std::string metrics_text() const;
  // Likewise in Ollama's form.
  std::string ollama_models() const;
  std::string ollama_running() const;
  /// Throws Problem 404.
  std::string ollama_model(const std::string& name) const;

 private:
  Problem no_model(const std::string& name) const;
  /// The context that a name of the model names; empty: none. Throws Problem 404.
  std::string context_named(const std::string& model) const;
  nlohmann::ordered_json ollama_entry(const std::string& name) const;
  /// The name of the context that a request is answered over; empty: none. Throws Problem.
  std::string context_of(const AnswerRequest& request) const;
  /// Throws Problem for a schema that cannot be used.
  std::shared_ptr<const Grammar> grammar_of(const AnswerSchema& schema) const;
  GenerateOptions options_of(const AnswerRequest& request, const ServedContext& context) const;
  std::vector<Token> tokens_of_chat(const AnswerRequest& request,
                                    const ServedContext& context) const;
  void check_plain(const ServedContext& context) const;
  /// Sets the tokens of a prompt behind the context, and what is echoed of them.
  void take_prompt(const Prompt& prompt, const AnswerRequest& request, Question& question) const;
  std::vector<Question> questions_of(const AnswerRequest& request,
                                     std::shared_ptr<const ServedContext> context) const;
  /// What the vocabulary cannot spell of the first text of a request that loses some; empty: none.
  std::string left_out(const AnswerRequest& request) const;
  /// Throws Problem for a prompt that leaves no room for its answer; settles max_tokens.
  void check_room(const AnswerRequest& request, Question& question) const;

  const Model& model_;
  std::optional<ChatTemplate> chat_;
  ServiceOptions options_;
  ServedNames names_;
  std::int64_t started_;  // seconds since 1970
  AnswerForm form_;       // of answers in a chat
  PromisedMemory memory_;
  Metrics metrics_;
  std::shared_ptr<const ServedContext> none_;  // a context without tokens
  Contexts contexts_;
  Scheduler scheduler_;
};

}  // namespace topkv::serve
