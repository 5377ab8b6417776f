// The scheduler and the list of contexts on the bundled model: what is answered together is what
// each answers alone, what is too much is refused, and who is gone is answered no further.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/serve/run/contexts.h"
#include "src/serve/run/prompt_boundary.h"
#include "src/serve/run/seat.h"
#include "tests/serve/serving.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using namespace test;

TEST(ServeScheduler, AnswersTogetherWhatEachAnswersAlone) {
  const auto one = served("7281934");
  const auto other = served("5520017");
  Serving serving({.queue = 64, .batch = 3});  // of six over a context three at a time
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 6; ++i) {
    answers.push_back(serving.scheduler.ask(question_of(one, 9)));
    answers.push_back(serving.scheduler.ask(question_of(other, 9)));
  }
  for (std::size_t i = 0; i < answers.size(); ++i)
    EXPECT_EQ(whole(*answers[i]), i % 2 == 0 ? " 7281934." : " 5520017.");
  EXPECT_EQ(answers[0]->usage().generated, 9);
  EXPECT_EQ(answers[0]->usage().context, one->context->tokens());
  EXPECT_TRUE(becomes_idle(serving.scheduler));
  EXPECT_EQ(serving.metrics.generated_tokens, 9 * 12);
  EXPECT_EQ(serving.metrics.running, 0);
  EXPECT_EQ(serving.memory.sessions, 0);
}

/// The order in which chunks of two prompts are read. The long prompt is asked first; the short one
/// while the first chunk of the long one is read.
std::vector<std::string> order_of_chunks(const std::shared_ptr<const ServedContext>& with_long,
                                         const std::shared_ptr<const ServedContext>& with_short) {
  std::promise<void> both;
  const std::shared_future<void> asked = both.get_future().share();
  std::vector<std::string> order;  // of the scheduler's thread, until the answers are whole
  const auto question = [&](const char* name, const auto& context, std::size_t tokens) {
    Question of = question_of(context, 2);
    of.prompt.resize(tokens, of.prompt.front());
    of.options.progress = [&, name, done = std::int64_t{0}](const Progress& progress) mutable {
      asked.wait();
      if (progress.done > std::exchange(done, progress.done))
        order.push_back(fmt::format("{} {}", name, progress.done));
    };
    return of;
  };
  Serving serving;
  const auto slow = serving.scheduler.ask(question("long", with_long, 300));
  while (serving.metrics.running == 0) std::this_thread::sleep_for(1ms);
  const auto quick = serving.scheduler.ask(question("short", with_short, 20));
  both.set_value();
  whole(*slow);
  whole(*quick);
  return order;
}

TEST(ServeScheduler, ReadsAShortPromptBeforeTheRestOfALongOne) {
  const std::vector<std::string> want = {"long 256", "short 20", "long 300"};
  const auto one = served("7281934");
  EXPECT_EQ(order_of_chunks(one, one), want);
  EXPECT_EQ(order_of_chunks(one, served("5520017")), want) << "over another context";
}

TEST(ServeScheduler, GivesEachChoiceASeedOfItsOwn) {
  Serving serving;
  Question question = question_of(served("7281934"), 12, "The");
  question.options.sampling = {.temperature = 2, .seed = 5};
  question.choices = 2;
  const auto texts = [&](std::uint64_t seed) {
    question.options.sampling.seed = seed;
    const auto answer = serving.scheduler.ask(question);
    std::vector<std::string> text(2);
    while (!answer->finished())
      if (const std::optional<Event> event = answer->next(10ms)) text[event->choice] += event->text;
    return text;
  };
  const auto first = texts(5);
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(texts(6)[0], first[1]);
}

TEST(ServeScheduler, DropsWhoIsGone) {
  Serving serving({.queue = 64, .batch = 1});
  const auto context = served("7281934");
  const auto runs = serving.scheduler.ask(question_of(context, 8000));
  const auto waits = serving.scheduler.ask(question_of(context, 8000));
  while (!runs->next(10ms)) continue;
  runs->cancel();
  waits->cancel();
  EXPECT_EQ(whole(*serving.scheduler.ask(question_of(context, 9))), " 7281934.");
  EXPECT_TRUE(becomes_idle(serving.scheduler));
  EXPECT_LT(serving.metrics.generated_tokens, 8000);
}

TEST(ServeScheduler, RefusesWhatTheQueueCannotHold) {
  Serving serving({.queue = 2, .batch = 1});
  Question question = question_of(served("7281934"), 9);
  question.choices = 3;
  const Problem problem = problem_of([&] { serving.scheduler.ask(question); });
  EXPECT_EQ(problem.status(), 429);
  EXPECT_EQ(problem.code(), "queue_full");
  EXPECT_TRUE(serving.scheduler.idle());
}

TEST(ServeScheduler, RefusesWhatMemoryCannotHold) {
  Serving serving;
  serving.memory.contexts = std::int64_t{1} << 60;
  const auto answer = serving.scheduler.ask(question_of(served("7281934"), 9));
  const Problem problem = problem_of([&] { whole(*answer); });
  EXPECT_EQ(problem.status(), 503);
  EXPECT_EQ(problem.code(), "out_of_memory");
  EXPECT_TRUE(becomes_idle(serving.scheduler));
}

TEST(ServeScheduler, RefusesStatesThatMemoryCannotHold) {
  AttentionShape shape = model().config().attention;
  shape.state_size.assign(static_cast<std::size_t>(shape.layers), 0);
  shape.state_size[1] = std::int64_t{1} << 40;  // values; they are never made
  const auto context = std::make_shared<const ServedContext>(
      ServedContext{.name = "hybrid",
                    .context = ContextBuilder(shape, {.capacity = 1}).freeze(),
                    .end = {},
                    .retrieval = retrieval()});
  Serving serving;
  const auto answer = serving.scheduler.ask(question_of(context, 9));
  const Problem problem = problem_of([&] { whole(*answer); });
  EXPECT_EQ(problem.status(), 503);
  EXPECT_EQ(problem.code(), "out_of_memory");
  EXPECT_NE(problem.message().find("and the recurrent states"), std::string::npos)
      << problem.message();
  EXPECT_TRUE(becomes_idle(serving.scheduler));
}

TEST(ServeScheduler, StatesArePromisedUntilTheyAreThere) {
  Seat seat;
  seat.capacity = 100;
  seat.row_bytes = 1000;
  EXPECT_EQ(seat.bytes(), 100'000);
  seat.state_bytes = 10;
  EXPECT_EQ(seat.bytes(), 100'050);
  EXPECT_EQ(seat.promised(), 100'050);
  seat.most_tokens = 40;  // the rows of these are there
  EXPECT_EQ(seat.promised(), 60'050);
  seat.tokens = Seat::most_states;
  EXPECT_EQ(seat.promised(), 60'000);
}

TEST(ServeScheduler, FailsOneAndAnswersTheOthers) {
  Serving serving;
  const auto context = served("7281934");
  Question bad = question_of(context, 9);
  bad.prompt.push_back(1 << 30);  // no token
  const auto failed = serving.scheduler.ask(bad);
  const auto good = serving.scheduler.ask(question_of(context, 9));
  EXPECT_EQ(problem_of([&] { whole(*failed); }).status(), 400);
  EXPECT_EQ(whole(*good), " 7281934.");
}

TEST(ServeScheduler, EndsWhatRunsWhenTheServerEnds) {
  Serving serving({.queue = 64, .batch = 1});
  const auto context = served("7281934");
  const auto runs = serving.scheduler.ask(question_of(context, 8000));
  const auto waits = serving.scheduler.ask(question_of(context, 8000));
  while (!runs->next(10ms)) continue;
  serving.scheduler.close();
  EXPECT_EQ(problem_of([&] { serving.scheduler.ask(question_of(context, 9)); }).code(),
            "shutting_down");
  EXPECT_FALSE(serving.scheduler.idle());
  serving.scheduler.end_all();
  for (const auto& answer : {runs, waits})
    EXPECT_EQ(problem_of([&] { whole(*answer); }).status(), 503);
  EXPECT_TRUE(serving.scheduler.idle());
}

ContextInfo ready(const Contexts& contexts, const std::string& name) {
  ContextInfo info = contexts.info(name);
  for (int i = 0; i < 6000 && info.state != "ready" && info.state != "failed"; ++i) {
    std::this_thread::sleep_for(10ms);
    info = contexts.info(name);
  }
  return info;
}

TEST(ServeContexts, AreReadAndForgotten) {
  PromisedMemory memory;
  Contexts contexts(model(), nullptr, {.prefill = {}, .retrieval = retrieval()}, memory);
  contexts.create({.name = "a", .text = text_with("7281934"), .chat = false, .system = ""});
  EXPECT_EQ(problem_of([&] {
              contexts.create({.name = "a", .text = "x", .chat = false, .system = ""});
            }).status(),
            409);
  const ContextInfo info = ready(contexts, "a");
  EXPECT_EQ(info.state, "ready") << info.error;
  EXPECT_EQ(info.done, info.tokens);
  EXPECT_GT(info.rows_bytes, 0);
  EXPECT_EQ(memory.contexts, 0);
  const auto found = contexts.find("a");
  contexts.remove("a");
  EXPECT_EQ(problem_of([&] { contexts.find("a"); }).status(), 404);
  EXPECT_EQ(problem_of([&] { contexts.remove("a"); }).status(), 404);
  Serving serving;  // who has it goes on
  EXPECT_EQ(whole(*serving.scheduler.ask(question_of(found, 9))), " 7281934.");
}

TEST(ServeContexts, EndBetweenReadingsOfAText) {
  int calls = 0;
  const auto ends_at_third = [&] {
    if (++calls == 3) throw Stopped("enough");
  };
  EXPECT_THROW(kept_prompt(model().tokenizer(), text_with("1"), ends_at_third), Stopped);
  EXPECT_EQ(calls, 3);
}

TEST(ServeContexts, SayWhyATextCannotBeRead) {
  PromisedMemory memory;
  Contexts contexts(model(), nullptr, {.prefill = {}, .retrieval = retrieval()}, memory);
  EXPECT_EQ(problem_of([&] {
              contexts.create({.name = "a", .text = "x", .chat = true, .system = ""});
            }).param(),
            "chat");
  ContextRequest large = {.name = "b", .text = text_with("1"), .chat = false, .system = ""};
  memory.sessions = std::int64_t{1} << 60;
  contexts.create(large);
  const ContextInfo info = ready(contexts, "b");
  EXPECT_EQ(info.state, "failed");
  EXPECT_NE(info.error.find("KV rows"), std::string::npos) << info.error;
  EXPECT_EQ(problem_of([&] { contexts.find("b"); }).code(), "context_failed");
  memory.sessions = 0;
  contexts.create({.name = "c", .text = "hi", .chat = false, .system = ""});
  const ContextInfo brief = ready(contexts, "c");
  EXPECT_EQ(brief.state, "failed");
  EXPECT_NE(brief.error.find("the text is too short: "), std::string::npos) << brief.error;
}

#if TOPKV_JINJA
// The bundled template has a short question twice.
TEST(ServeContexts, SayAtOnceThatTheTemplateKeepsNoText) {
  const ChatTemplate chat = ChatTemplate::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  PromisedMemory memory;
  Contexts contexts(model(), &chat, {.prefill = {}, .retrieval = retrieval()}, memory);
  const Problem problem = problem_of(
      [&] { contexts.create({.name = "a", .text = text_with("1"), .chat = true, .system = ""}); });
  EXPECT_EQ(problem.status(), 400);
  EXPECT_EQ(problem.param(), "chat");
  EXPECT_NE(problem.message().find("leave \"chat\" out, and use POST /v1/completions"),
            std::string::npos)
      << problem.message();
  EXPECT_EQ(problem.message().find("--"), std::string::npos) << problem.message();
  EXPECT_TRUE(contexts.list().empty());
}
#endif

// After an answer whose prompt was a turn, and after no other.
TEST(ServeScheduler, TellsWhatTurnsAttended) {
  auto context = std::make_shared<ServedContext>(*served("5520017"));
  context->retrieval.turns =
      PrefillAttention{.mode = Prefill::sparse, .window = 64, .keys = 64, .least_keys = 0};
  PromisedMemory memory;
  Metrics metrics;
  std::vector<std::string> told;
  Scheduler scheduler(model(), {}, memory, metrics,
                      [&](const std::string& name, std::span<const PrefillShare> shares) {
                        told.push_back(name);
                        EXPECT_EQ(std::ssize(shares), model().config().attention.layers);
                        EXPECT_GT(shares[1].queries, 0);
                        EXPECT_LT(shares[1].keys, shares[1].dense_keys);
                      });
  whole(*scheduler.ask(question_of(context, 2)));
  std::string text;
  for (int i = 0; i < 3; ++i) text += text_with("1112223");
  whole(*scheduler.ask(question_of(context, 2, text + asked)));
  ASSERT_TRUE(becomes_idle(scheduler));
  EXPECT_EQ(told, std::vector<std::string>({"n5520017"}));
}

}  // namespace
}  // namespace topkv::serve
