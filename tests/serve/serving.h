// What tests of the server share: the bundled model, contexts with a number in them, a scheduler.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "src/serve/request/problem.h"
#include "src/serve/run/prompt_boundary.h"
#include "src/serve/run/scheduler.h"
#include "topkv/model.h"

namespace topkv::serve::test {

using namespace std::chrono_literals;

inline const Model& model() {
  static const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  return model;
}

inline std::string text_with(const std::string& number) {
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text +=
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        "again.\n";
    if (i == 3) text += "One of the special magic numbers for quiet-river is: " + number + ".\n";
  }
  return text;
}

inline const std::string asked =
    " What is the special magic number for quiet-river mentioned in the provided text? The special "
    "magic number for "
    "quiet-river mentioned in the provided text is";

inline RetrievalOptions retrieval() { return {.index = "exact", .window = 64}; }

inline std::shared_ptr<const ServedContext> served(const std::string& number) {
  const KeptPrompt kept = kept_prompt(model().tokenizer(), text_with(number));
  return std::make_shared<const ServedContext>(
      ServedContext{.name = "n" + number,
                    .context = model().prefill(kept.tokens),
                    .end = kept.end,
                    .retrieval = retrieval()});
}

inline Question question_of(const std::shared_ptr<const ServedContext>& context,
                            std::int64_t tokens, const std::string& prompt = asked) {
  Question question;
  question.context = context;
  question.prompt = tokens_of_prompt(model().tokenizer(), context->end, {}, prompt);
  question.options.max_tokens = tokens;
  return question;
}

/// The text of one answer, waited for.
inline std::string whole(Answer& answer) {
  std::string text;
  for (int i = 0; i < 6000 && !answer.finished(); ++i)
    if (const std::optional<Event> event = answer.next(10ms)) text += event->text;
  EXPECT_TRUE(answer.finished());
  return text;
}

inline bool becomes_idle(const Scheduler& scheduler) {
  for (int i = 0; i < 6000 && !scheduler.idle(); ++i) std::this_thread::sleep_for(10ms);
  return scheduler.idle();
}

template <class Call>
Problem problem_of(const Call& call) {
  try {
    call();
  } catch (const Problem& problem) {
    return problem;
  }
  ADD_FAILURE() << "no problem";
  return {0, ""};
}

struct Serving {
  PromisedMemory memory;
  Metrics metrics;
  Scheduler scheduler;
  explicit Serving(SchedulerLimits limits = {}) : scheduler(model(), limits, memory, metrics) {}
};

}  // namespace topkv::serve::test
