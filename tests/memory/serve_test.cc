// The scheduler where memory lacks: a request that is not taken leaves nothing behind.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "src/serve/run/prompt_boundary.h"
#include "src/serve/run/scheduler.h"
#include "tests/memory/counted_memory.h"
#include "topkv/model.h"

namespace topkv::serve {
namespace {

using namespace std::chrono_literals;

TEST(ServeMemory, ARequestThatFailsAtAnyAllocationLeavesTheSchedulerAsItWas) {
  const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  const KeptPrompt kept = kept_prompt(model.tokenizer(), "The grass is green. The sky is blue.\n");
  Question question;
  question.context = std::make_shared<const ServedContext>(ServedContext{
      .name = "a", .context = model.prefill(kept.tokens), .retrieval = {.index = "exact"}});
  question.prompt = model.tokenizer().encode("The");
  question.options.max_tokens = 3;
  question.choices = 2;
  PromisedMemory memory;
  Metrics metrics;
  Scheduler scheduler(model, {.queue = 2}, memory, metrics);
  // Question, answer, seats and their places, lane, entry of the lanes: some more than eight.
  for (std::int64_t n = 0; n < 8; ++n) {
    Question asked = question;
    {
      const ::test::FailingAllocation failing(n);
      EXPECT_THROW(scheduler.ask(std::move(asked)), std::bad_alloc) << n;
    }
    ASSERT_TRUE(scheduler.idle()) << n;
  }
  const std::shared_ptr<Answer> answer =
      scheduler.ask(question);  // the queue has all of its places
  for (int i = 0; i < 6000 && !answer->finished(); ++i) answer->next(10ms);
  EXPECT_TRUE(answer->finished());
  EXPECT_EQ(answer->usage().generated, 6);
}

}  // namespace
}  // namespace topkv::serve
