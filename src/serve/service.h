// What the server does, apart from HTTP: requests to questions, and what it tells of itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "src/serve/contexts.h"
#include "src/serve/metrics.h"
#include "src/serve/promised_memory.h"
#include "src/serve/request.h"
#include "src/serve/scheduler.h"
#include "topkv/chat_template.h"
#include "topkv/model.h"

namespace topkv::serve {

struct ServiceOptions {
  std::string model_name;
  std::int64_t room = 16384;  ///< tokens of a prompt and its answer at most
  /// Host memory for sessions of ended answers, for prompts that go on from them; 0: none are kept.
  std::int64_t kept_bytes = 0;
  SchedulerLimits limits;  ///< their room is the one above
  ReadingOptions reading;
};

/// Safe from many threads.
class Service {
 public:
  /// The model outlives it. chat: its template, if it has one.
  Service(const Model& model, std::optional<ChatTemplate> chat, ServiceOptions options);

  Contexts& contexts() { return contexts_; }
  Scheduler& scheduler() { return scheduler_; }
  Metrics& metrics() { return metrics_; }
  const ServiceOptions& options() const { return options_; }

  /// Throws Problem.
  std::shared_ptr<Answer> answer(const AnswerRequest& request);

  /// As Contexts::remove; sessions that are kept over the context go with it.
  void remove_context(const std::string& name);

  // Bodies of responses.
  std::string models() const;
  std::string all_contexts() const;
  std::string one_context(const std::string& name) const;
  std::string metrics_text() const;

 private:
  std::vector<Token> tokens_of(const AnswerRequest& request, const ServedContext& context) const;

  const Model& model_;
  std::optional<ChatTemplate> chat_;
  ServiceOptions options_;
  std::int64_t started_;  // seconds since 1970
  PromisedMemory memory_;
  Metrics metrics_;
  std::shared_ptr<const ServedContext> none_;  // a context without tokens
  Contexts contexts_;
  Scheduler scheduler_;
};

}  // namespace topkv::serve
