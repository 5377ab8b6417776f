// Sessions of ended answers, kept for prompts that go on from their texts: what is answered over
// one equals what a fresh session answers, and nobody else gets it meanwhile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/serve/run/contexts.h"
#include "src/serve/run/kept_sessions.h"
#include "src/serve/run/service.h"
#include "tests/serve/serving.h"
#include "tests/support/failing.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using namespace test;

constexpr std::int64_t enough = std::int64_t{1} << 30;

/// A scheduler that keeps sessions, or none.
struct Keeping {
  PromisedMemory memory;
  Metrics metrics;
  Scheduler scheduler;
  explicit Keeping(std::int64_t bytes, const Model& of = model(), SchedulerLimits limits = {})
      : memory(bytes), scheduler(of, limits, memory, metrics) {}
};

/// Requests that name no context are answered over this one.
std::shared_ptr<const ServedContext> nothing(const Model& of = model(), DType dtype = DType::bf16) {
  return std::make_shared<const ServedContext>(ServedContext{
      .context = ContextBuilder(of.config().attention, {.capacity = 1, .dtype = dtype}).freeze(),
      .retrieval = retrieval()});
}

std::vector<Token> tokens_of_text(std::size_t count, const std::string& number = "7281934") {
  std::vector<Token> tokens = model().tokenizer().encode(text_with(number) + text_with("1"));
  EXPECT_GE(tokens.size(), count);
  tokens.resize(count);
  return tokens;
}

Question asking(const std::shared_ptr<const ServedContext>& context, std::vector<Token> prompt,
                std::int64_t tokens = 6) {
  Question question;
  question.context = context;
  question.prompt = std::move(prompt);
  question.options.max_tokens = tokens;
  question.options.logprobs = 0;
  return question;
}

struct Told {
  std::string bytes;  // of its tokens
  std::vector<double> logprobs;
  Usage usage;
};

Told told(Answer& answer) {
  Told all;
  for (int i = 0; i < 6000 && !answer.finished(); ++i) {
    const std::optional<Event> event = answer.next(10ms);
    if (!event) continue;
    for (const ToldToken& token : event->logprobs) {
      all.bytes += token.bytes;
      all.logprobs.push_back(token.logprob.value());
    }
  }
  EXPECT_TRUE(answer.finished());
  all.usage = answer.usage();
  return all;
}

Told told(Keeping& keeping, Question question) {
  return told(*keeping.scheduler.ask(std::move(question)));
}

/// far: how far apart logarithms may be: rows of steps and of chunks round otherwise.
void expect_equal(const Told& got, const Told& want, double far) {
  EXPECT_EQ(got.bytes, want.bytes);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (std::size_t i = 0; i < want.logprobs.size(); ++i)
    EXPECT_NEAR(got.logprobs[i], want.logprobs[i], far) << i;
}

/// The prompt of a next turn: a prompt, its answer but for some tokens, and a text behind.
std::vector<Token> next_turn(const Question& question, const Told& answer, std::size_t less = 0) {
  std::vector<Token> tokens = question.prompt;
  const std::vector<Token> said = model().tokenizer().encode(answer.bytes);
  tokens.insert(tokens.end(), said.begin(), said.end() - static_cast<std::ptrdiff_t>(less));
  const std::vector<Token> more = model().tokenizer().encode(" The grass is");
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

TEST(ServeKept, ANextTurnReadsOnlyWhatIsNew) {
  for (const auto& context : {nothing(), served("5520017")}) {
    Keeping keeping(enough);
    Keeping fresh(0);
    Question question = asking(context, tokens_of_text(100));
    Told first = told(keeping, question);
    EXPECT_EQ(first.usage.kept, 0);
    EXPECT_EQ(keeping.memory.kept.count(), 1);
    for (int turn = 0; turn < 2; ++turn) {
      Question next = asking(context, next_turn(question, first));
      const std::int64_t had = std::ssize(question.prompt) + 5;  // the sixth was never fed
      const Told second = told(keeping, next);
      EXPECT_EQ(second.usage.kept, had);
      EXPECT_EQ(second.usage.prompt, std::ssize(next.prompt));
      expect_equal(second, told(fresh, next), 0.05);  // rows are bf16
      question = next;
      first = second;
    }
    EXPECT_EQ(keeping.memory.kept.count(), 1) << "it is one session throughout";
    EXPECT_EQ(fresh.memory.kept.count(), 0);
    EXPECT_GT(keeping.metrics.kept_tokens, 200);
    EXPECT_EQ(fresh.metrics.kept_tokens, 0);
  }
}

TEST(ServeKept, UsageCountsTokensOfAllPromptsOfARequest) {
  const auto context = nothing();
  Keeping keeping(enough);
  const std::vector<Token> text = tokens_of_text(61);
  std::vector<Question> both = {asking(context, {text.begin(), text.end() - 1}),
                                asking(context, {text.begin() + 1, text.end()})};
  both[0].choices = 2;
  EXPECT_EQ(told(*keeping.scheduler.ask(both)).usage.kept, 0);
  EXPECT_EQ(told(*keeping.scheduler.ask(both)).usage.kept, 2 * 59);
}

TEST(ServeKept, PenaltiesCountTokensThatWereNotReadAgain) {
  const auto context = nothing();
  Keeping keeping(enough);
  Keeping fresh(0);
  const auto penalised = [&](std::vector<Token> prompt) {
    Question question = asking(context, std::move(prompt));
    question.options.sampling.repetition_penalty = 3;
    return question;
  };
  const Question question = penalised(tokens_of_text(60));
  const Question next = penalised(next_turn(question, told(keeping, question)));
  const Told got = told(keeping, next);
  EXPECT_GT(got.usage.kept, 60);
  expect_equal(got, told(fresh, next), 0.05);
  EXPECT_NE(got.bytes, told(fresh, asking(context, next.prompt)).bytes) << "the penalty shows";
}

/// Copies of the bundled model whose config.json says something else.
class ServeKeptModels : public testing::Test {
 protected:
  const Model& changed(const nlohmann::json& config) {
    const std::filesystem::path from = TOPKV_SOURCE_DIR "/models/needle-14m";
    for (const char* name : {"model.safetensors", "tokenizer.json"})
      std::filesystem::create_symlink(from / name, temp_.path() / name);
    std::ifstream file(from / "config.json");
    nlohmann::json json = nlohmann::json::parse(file);
    json.update(config);
    temp_.write("config.json", json.dump());
    model_.emplace(Model::load(temp_.path()));
    return *model_;
  }

  TempDirectory temp_;
  std::optional<Model> model_;
};

TEST_F(ServeKeptModels, SlidingWindowsSeeTheSameRows) {
  const Model& sliding = changed({{"model_type", "mistral"}, {"sliding_window", 48}});
  const auto context = nothing(sliding, DType::f32);
  Keeping keeping(enough, sliding);
  Keeping fresh(0, sliding);
  const Question question = asking(context, tokens_of_text(150));
  const Question next = asking(context, next_turn(question, told(keeping, question), 2));
  const Told got = told(keeping, next);
  EXPECT_GE(got.usage.kept, 150);
  expect_equal(got, told(fresh, next), 1e-3);
}

TEST_F(ServeKeptModels, RowsThatDependOnTheLengthOfTheTextAreReadAgain) {
  const Model& chunks = changed(
      {{"dual_chunk_attention_config",
        {{"chunk_size", 64}, {"local_size", 8}, {"original_max_position_embeddings", 100}}}});
  const auto context = nothing(chunks, DType::f32);
  Keeping keeping(enough, chunks);
  Keeping fresh(0, chunks);
  const Question question = asking(context, tokens_of_text(60));
  Question next = asking(context, next_turn(question, told(keeping, question)));
  ASSERT_LT(next.prompt.size() + 6, 100U);
  Told got = told(keeping, next);
  EXPECT_GE(got.usage.kept, 60) << "within the original length";
  expect_equal(got, told(fresh, next), 1e-3);
  EXPECT_EQ(keeping.memory.kept.count(), 1);
  next.prompt.resize(101, next.prompt.front());
  EXPECT_EQ(told(keeping, next).usage.kept, 0) << "beyond it";
  EXPECT_EQ(keeping.memory.kept.count(), 1) << "that of before, and not this one";
}

TEST(ServeKept, ASessionHasOneOwnerAtATime) {
  const auto context = nothing();
  Keeping keeping(enough);
  const Question question = asking(context, tokens_of_text(60));
  const Question next = asking(context, next_turn(question, told(keeping, question)));
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(keeping.scheduler.ask(next));
  std::int64_t reused = 0;
  const Told alone = told(*answers[0]);
  reused += alone.usage.kept > 0 ? 1 : 0;
  for (const std::size_t i : {1U, 2U}) {
    const Told other = told(*answers[i]);
    reused += other.usage.kept > 0 ? 1 : 0;
    expect_equal(other, alone, 0.05);
  }
  EXPECT_GE(reused, 1);
  EXPECT_TRUE(becomes_idle(keeping.scheduler));
  EXPECT_EQ(keeping.memory.sessions, 0);
  EXPECT_LE(keeping.memory.kept.count(), 3);
}

TEST(ServeKept, OneThatIsCancelledKeepsWhatItRead) {
  const auto context = nothing();
  Keeping keeping(enough);
  Question question = asking(context, tokens_of_text(300));
  std::promise<std::shared_ptr<Answer>> asked;
  const std::shared_future<std::shared_ptr<Answer>> answer = asked.get_future().share();
  question.options.progress = [answer](const Progress& progress) {
    if (progress.done == 256) answer.get()->cancel();
  };
  asked.set_value(keeping.scheduler.ask(question));
  EXPECT_TRUE(becomes_idle(keeping.scheduler));
  ASSERT_EQ(keeping.memory.kept.count(), 1);
  question.options.progress = {};
  const Told got = told(keeping, question);
  EXPECT_EQ(got.usage.kept, 256);
  Keeping fresh(0);
  expect_equal(got, told(fresh, question), 0.05);
}

TEST(ServeKept, OneThatFailedIsNotKept) {
  Keeping keeping(enough);
  Question question = asking(nothing(), tokens_of_text(60));
  question.options.progress = [](const Progress&) { throw std::runtime_error("no more"); };
  const auto answer = keeping.scheduler.ask(question);
  EXPECT_EQ(problem_of([&] { told(*answer); }).status(), 500);
  EXPECT_TRUE(becomes_idle(keeping.scheduler));
  EXPECT_EQ(keeping.memory.kept.count(), 0);
}

TEST(ServeKept, GivesWayToAnAnswerThatNeedsItsMemory) {
  const auto context = nothing();
  Keeping keeping(std::numeric_limits<std::int64_t>::max());
  const Question question = asking(context, tokens_of_text(60));
  told(keeping, question);
  told(keeping, asking(context, tokens_of_text(60, "1")));
  auto found = keeping.memory.kept.take(context, question.prompt, 70);
  ASSERT_TRUE(found);
  found->kept.most_tokens = std::int64_t{1} << 40;  // so that giving it up seems to be enough
  keeping.memory.kept.keep(std::move(found->kept));
  keeping.memory.contexts = std::int64_t{1} << 50;  // nothing is left, whatever is given up
  const auto answer = keeping.scheduler.ask(question);
  EXPECT_EQ(problem_of([&] { told(*answer); }).code(), "out_of_memory");
  EXPECT_EQ(keeping.memory.kept.count(), 0);
  keeping.memory.contexts = 0;
  EXPECT_EQ(told(keeping, question).usage.kept, 0);
}

TEST(ServeKept, StaysWhereGivingItUpWouldNotBeEnough) {
  const auto context = nothing();
  Keeping keeping(enough);
  told(keeping, asking(context, tokens_of_text(60, "1")));
  keeping.memory.contexts = std::int64_t{1} << 60;
  const auto answer = keeping.scheduler.ask(asking(context, tokens_of_text(60)));
  EXPECT_EQ(problem_of([&] { told(*answer); }).code(), "out_of_memory");
  EXPECT_EQ(keeping.memory.kept.count(), 1);
}

TEST(ServeKept, GivesWayToAnAnswerThatFindsNoMemoryOfADevice) {
  const auto context = nothing();
  Keeping fresh(0);
  const std::vector<Token> text = tokens_of_text(61);
  const Question question = asking(context, {text.begin() + 1, text.end()}, 1);
  const Told want = told(fresh, question);
  bool failed = true;
  int failures = 0;
  for (std::int64_t n = 1; failed; n *= 4) {
    Keeping keeping(enough);
    told(keeping, asking(context, tokens_of_text(60)));
    Told got;
    {
      const ::test::FailingAt failing(n,
                                      [] { throw OutOfMemory("rows", 4096, 0, "ask for less"); });
      got = told(keeping, question);
      failed = ::test::FailingAt::reached_after() >= 0;
    }
    expect_equal(got, want, 0.05);
    EXPECT_EQ(keeping.memory.kept.count(), failed ? 1 : 2) << n;
    failures += failed ? 1 : 0;
  }
  EXPECT_GT(failures, 1);
}

TEST(ServeKept, GoesWithItsContext) {
  Service service(model(), {},
                  {.model_name = "needle",
                   .room = 1024,
                   .kept_bytes = enough,
                   .limits = {},
                   .reading = {.prefill = {}, .retrieval = retrieval()}});
  std::weak_ptr<const Context> rows;
  {
    const auto context = served("7281934");
    rows = context->context;
    service.contexts().add(*context);
  }
  AnswerRequest request;
  request.context = "n7281934";
  request.prompts = {asked};
  request.options.max_tokens = 3;
  whole(*service.answer(request).answer);
  EXPECT_NE(service.metrics_text().find("topkv_kept_sessions 1\n"), std::string::npos);
  EXPECT_TRUE(becomes_idle(service.scheduler()));
  service.remove_context("n7281934");
  EXPECT_TRUE(rows.expired());
  EXPECT_NE(service.metrics_text().find("topkv_kept_sessions 0\n"), std::string::npos);
}

/// Sessions that are kept and found by hand.
class ServeKeptList : public testing::Test {
 protected:
  KeptSession session_of(const std::vector<Token>& tokens) {
    KeptSession kept{.session = Session(context_->context, {.window = 64, .capacity = 100}),
                     .context = context_,
                     .tokens = tokens,
                     .most_tokens = std::ssize(tokens)};
    return kept;
  }
  /// How many tokens of this prompt some session has; the session goes back.
  std::int64_t common(KeptSessions& kept, const std::vector<Token>& prompt) {
    auto found = kept.take(context_, prompt, 100);
    if (!found) return 0;
    kept.keep(std::move(found->kept));
    return found->common;
  }
  std::int64_t bytes_of(std::int64_t tokens) const {
    const AttentionShape& shape = context_->context->shape();
    return tokens * shape.layers * shape.kv_heads *
           context_->context->dtype().row_bytes(shape.head_dim);
  }

  std::shared_ptr<const ServedContext> context_ = nothing();
};

TEST_F(ServeKeptList, FindsTheLongestBeginning) {
  KeptSessions kept(enough);
  kept.keep(session_of({1, 2, 3, 4}));
  kept.keep(session_of({1, 2, 3, 4, 5, 6}));
  kept.keep(session_of({1, 2, 9, 9}));
  EXPECT_EQ(common(kept, {1, 2, 3, 4, 5, 6, 7}), 6);
  EXPECT_EQ(common(kept, {1, 2, 3, 4, 5, 6}), 5) << "a token is left to read";
  EXPECT_EQ(common(kept, {1, 2, 3, 4, 8}), 4);
  EXPECT_EQ(common(kept, {1, 2, 9}), 2);
  EXPECT_EQ(common(kept, {1, 8, 8, 8}), 0) << "less than half of each";
  EXPECT_EQ(common(kept, {7, 1, 2, 3}), 0);
  EXPECT_EQ(common(kept, {}), 0);
  EXPECT_FALSE(kept.take(context_, std::vector<Token>{1, 2, 3, 4, 5}, 101)) << "too little room";
  EXPECT_FALSE(kept.take(nothing(), std::vector<Token>{1, 2, 3, 4, 5}, 100)) << "another context";
  EXPECT_EQ(kept.count(), 3);
}

TEST_F(ServeKeptList, GivesUpTheOneUsedLongestAgo) {
  KeptSessions kept(bytes_of(10));
  kept.keep(session_of({1, 2, 3, 4}));
  kept.keep(session_of({5, 6, 7, 8}));
  EXPECT_EQ(kept.bytes(), bytes_of(8));
  EXPECT_EQ(common(kept, {1, 2, 3, 4, 5}), 4);
  kept.keep(session_of({9, 8, 7}));
  EXPECT_EQ(kept.bytes(), bytes_of(7));
  EXPECT_EQ(common(kept, {5, 6, 7, 8, 9}), 0);
  EXPECT_EQ(common(kept, {1, 2, 3, 4, 5}), 4);
  kept.keep(session_of(std::vector<Token>(11, 1)));  // more than all may take
  EXPECT_EQ(kept.count(), 2);
  EXPECT_TRUE(kept.give_up_oldest());
  EXPECT_EQ(common(kept, {9, 8, 7, 6}), 0);
  EXPECT_TRUE(kept.give_up_oldest());
  EXPECT_FALSE(kept.give_up_oldest());
  EXPECT_EQ(kept.bytes(), 0);
  KeptSessions none(0);
  none.keep(session_of({1}));
  EXPECT_EQ(none.count(), 0);
}

TEST_F(ServeKeptList, AreSixtyFourAtMost) {
  KeptSessions kept(enough);
  for (Token i = 0; i < 66; ++i) kept.keep(session_of({i, i, i}));
  EXPECT_EQ(kept.count(), 64);
  EXPECT_EQ(common(kept, {1, 1, 1, 1}), 0);
  EXPECT_EQ(common(kept, {2, 2, 2, 2}), 3);
}

}  // namespace
}  // namespace topkv::serve
