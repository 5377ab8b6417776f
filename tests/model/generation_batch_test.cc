// Sessions that join and leave answers growing together: each gives what it gives alone.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "src/core/memory/memory.h"
#include "src/store/row_store.h"
#include "tests/support/failing.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using Finished = GenerationBatch::Finished;

/// A small model whose answers depend on all of their text.
class Batch : public testing::Test {
 protected:
  Batch() {
    temp_.write("config.json", config_of({}).dump());
    temp_.write("model.safetensors", file_of(random_tensors({})));
    model_ = std::make_unique<Model>(Model::load(temp_.path()));
    context_ = model_->prefill(some_tokens(150, 101), {.kv_dtype = DType::f32})
                   ->with_index("codes:k=32,v=8");
  }

  static std::vector<Token> prompt(std::int64_t number, std::int64_t tokens) {
    std::vector<Token> all;
    for (std::int64_t i = 0; i < tokens; ++i)
      all.push_back(static_cast<Token>((number * 17 + i * i * 3 + i) % 101));
    return all;
  }
  static GenerateOptions options(std::int64_t number) {
    GenerateOptions of = {.max_tokens = 5 + 3 * (number % 4)};
    if (number % 2 == 1) {
      of.sampling = {.temperature = 0.7 + 0.1 * static_cast<double>(number), .top_k = 20};
      of.sampling.seed = static_cast<std::uint64_t>(number);
    }
    return of;
  }
  Session session() const {
    return Session(context_, {.k = TopK::same(16), .window = 32, .capacity = 700});
  }
  GenerateResult alone(const std::vector<Token>& text, const GenerateOptions& options) const {
    Session one = session();
    return model_->generate(one, text, options);
  }
  static void run_to_end(GenerationBatch& batch, std::map<GenerationBatch::Id, Finished>& all) {
    while (batch.size() > 0) collect(batch.step(), all);
  }
  static void collect(std::vector<Finished> some, std::map<GenerationBatch::Id, Finished>& all) {
    for (Finished& one : some) all[one.id] = std::move(one);
  }

  TempDirectory temp_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<const Context> context_;
};

TEST_F(Batch, ThoseThatComeAndGoAnswerAsAlone) {
  constexpr std::int64_t count = 9;
  std::vector<std::unique_ptr<Session>> sessions;
  GenerationBatch batch(*model_);
  std::map<GenerationBatch::Id, Finished> finished;
  std::map<GenerationBatch::Id, std::int64_t> number;
  std::vector<std::vector<Token>> told(count);
  for (std::int64_t i = 0; i < count; ++i) {
    sessions.push_back(std::make_unique<Session>(session()));
    const auto id = batch.add(*sessions.back(), prompt(i, i == 4 ? 600 : 3 + i), options(i),
                              [&told, i](Token token) {
                                told[static_cast<std::size_t>(i)].push_back(token);
                                return true;
                              });
    number[id] = i;
    for (int steps = 0; steps < 2; ++steps) collect(batch.step(), finished);
  }
  EXPECT_GT(finished.size(), 0U) << "some leave while others join";
  run_to_end(batch, finished);
  ASSERT_EQ(finished.size(), number.size());
  for (auto& [id, one] : finished) {
    const std::int64_t i = number[id];
    ASSERT_FALSE(one.error);
    const auto text = prompt(i, i == 4 ? 600 : 3 + i);
    const GenerateResult want = alone(text, options(i));
    EXPECT_EQ(one.result.tokens, want.tokens) << i;
    EXPECT_EQ(told[static_cast<std::size_t>(i)], want.tokens) << i;
    EXPECT_EQ(one.result.steps, want.steps);
    EXPECT_EQ(sessions[static_cast<std::size_t>(i)]->own_tokens(), std::ssize(text) + want.steps);
  }
  const ForwardTimes times = batch.times();
  EXPECT_GT(times.matmul, 0);
  EXPECT_GT(times.attention, 0);
}

TEST_F(Batch, APromptIsReadChunkByChunkWhileOthersAnswer) {
  Session quick = session();
  Session slow = session();
  GenerationBatch batch(*model_);
  std::int64_t tokens = 0;
  std::vector<std::int64_t> read;
  batch.add(quick, prompt(0, 4), {.max_tokens = 20}, [&](Token) { return ++tokens > 0; });
  batch.step();
  EXPECT_EQ(tokens, 1) << "the first token comes with the prompt's end";
  batch.add(slow, prompt(1, 600),
            {.max_tokens = 3, .progress = [&](const Progress& progress) {
               EXPECT_EQ(progress.total, 600);
               if (progress.done > 0 && (read.empty() || read.back() != progress.done))
                 read.push_back(progress.done);
             }});
  EXPECT_EQ(batch.reading(), 1);
  for (std::int64_t steps = 1; steps <= 3; ++steps) {
    batch.step();
    EXPECT_EQ(std::ssize(read), steps);
    EXPECT_EQ(tokens, 1 + steps);
  }
  EXPECT_EQ(read, (std::vector<std::int64_t>{256, 512, 600}));
  EXPECT_EQ(batch.reading(), 0);
  EXPECT_EQ(batch.size(), 2);
}

TEST_F(Batch, AShortPromptIsReadBeforeTheRestOfALongOne) {
  Session slow = session();
  Session quick = session();
  GenerationBatch batch(*model_);
  std::int64_t read = 0;
  bool answers = false;
  batch.add(slow, prompt(1, 600),
            {.max_tokens = 1, .progress = [&](const Progress& progress) { read = progress.done; }});
  batch.step();
  EXPECT_EQ(read, 256);
  batch.add(quick, prompt(0, 300), {.max_tokens = 1}, [&](Token) { return answers = true; });
  EXPECT_EQ(batch.next_prompt()->left, 300) << "fewer than 600 - 256";
  batch.step();
  EXPECT_EQ(batch.next_prompt()->left, 44);
  batch.step();
  EXPECT_TRUE(answers);
  EXPECT_EQ(read, 256);
  EXPECT_EQ(batch.next_prompt()->left, 600 - 256);
  EXPECT_EQ(batch.next_prompt()->passed, 2);
  batch.step();
  EXPECT_EQ(read, 512);
  EXPECT_EQ(batch.next_prompt()->passed, 0);
  batch.step();
  EXPECT_EQ(read, 600);
  EXPECT_FALSE(batch.next_prompt());
}

TEST_F(Batch, ShortPromptsPassALongOneOverABoundedNumberOfTimes) {
  Session slow = session();
  std::vector<std::unique_ptr<Session>> quick;
  GenerationBatch batch(*model_);
  std::int64_t read = 0;
  std::vector<std::int64_t> reads;  // numbers of the steps that read the long prompt
  batch.add(slow, prompt(1, 600),
            {.max_tokens = 1, .progress = [&](const Progress& progress) { read = progress.done; }});
  std::map<GenerationBatch::Id, Finished> finished;
  for (std::int64_t steps = 1; read < 600 && steps < 100; ++steps) {
    quick.push_back(std::make_unique<Session>(session()));
    batch.add(*quick.back(), prompt(steps, 3), {.max_tokens = 1});
    const std::int64_t before = read;
    collect(batch.step(), finished);
    if (read > before) reads.push_back(steps);
  }
  EXPECT_EQ(reads, (std::vector<std::int64_t>{9, 18, 27}));
  run_to_end(batch, finished);
  EXPECT_EQ(finished.at(0).result.tokens, alone(prompt(1, 600), {.max_tokens = 1}).tokens);
}

TEST_F(Batch, AStepThatReadsNothingPassesPromptsOver) {
  Session quick = session();
  Session slow = session();
  GenerationBatch batch(*model_);
  std::int64_t tokens = 0;
  batch.add(quick, prompt(0, 4), {.max_tokens = 20}, [&](Token) { return ++tokens > 0; });
  batch.step();
  batch.add(slow, prompt(1, 600), {.max_tokens = 1});
  for (std::int64_t steps = 1; steps <= PromptTurn::most_passed; ++steps) {
    batch.step(false);
    EXPECT_EQ(tokens, 1 + steps) << "others go on";
    EXPECT_EQ(batch.next_prompt()->left, 600);
    EXPECT_EQ(batch.next_prompt()->passed, steps);
  }
  EXPECT_TRUE(batch.next_prompt()->before({.left = 1}));
  EXPECT_FALSE(batch.next_prompt()->before({.left = 601, .passed = PromptTurn::most_passed + 1}));
}

TEST_F(Batch, OneThatIsRemovedKeepsWhatItHasAndTheOthersGoOn) {
  Session a = session();
  Session b = session();
  Session c = session();
  GenerationBatch batch(*model_);
  const auto first = batch.add(a, prompt(0, 6), {.max_tokens = 12});
  const auto second = batch.add(b, prompt(2, 7), {.max_tokens = 12});
  for (int steps = 0; steps < 4; ++steps) batch.step();
  const auto reading = batch.add(c, prompt(3, 600), {.max_tokens = 2});
  batch.step();
  const GenerateResult some = batch.remove(first);
  EXPECT_EQ(batch.remove(reading).tokens.size(), 0U);
  EXPECT_EQ(c.own_tokens(), 256);
  EXPECT_EQ(batch.size(), 1);
  EXPECT_THROW(batch.remove(first), InvalidArgument);
  const auto whole = alone(prompt(0, 6), {.max_tokens = 12}).tokens;
  ASSERT_EQ(some.tokens.size(), 5U);
  EXPECT_EQ(some.tokens, std::vector<Token>(whole.begin(), whole.begin() + 5));
  EXPECT_EQ(a.own_tokens(), 6 + 4);
  // What is left of it goes on from its last token.
  const auto more = model_->generate(a, std::vector<Token>{some.tokens.back()}, {.max_tokens = 7});
  EXPECT_EQ(more.tokens, std::vector<Token>(whole.begin() + 5, whole.end()));
  std::map<GenerationBatch::Id, Finished> finished;
  run_to_end(batch, finished);
  EXPECT_EQ(finished.at(second).result.tokens, alone(prompt(2, 7), {.max_tokens = 12}).tokens);
  EXPECT_TRUE(batch.step().empty());
}

TEST_F(Batch, AFailureOfOneIsItsOwn) {
  Session good = session();
  Session throws = session();
  Session full = session();
  Session watched = session();
  model_->logits(throws, prompt(8, 9));
  model_->logits(full, prompt(8, 690));
  GenerationBatch batch(*model_);
  int seen = 0;
  const auto id = batch.add(good, prompt(0, 6), {.max_tokens = 16});
  const auto thrower = batch.add(throws, prompt(1, 6), {.max_tokens = 16}, [&](Token) -> bool {
    if (++seen == 3) throw std::runtime_error("enough");
    return true;
  });
  const auto filled = batch.add(full, prompt(2, 6), {.max_tokens = 16});
  const auto stopped = batch.add(watched, prompt(3, 600),
                                 {.max_tokens = 1, .progress = [](const Progress& progress) {
                                    if (progress.done >= 256) throw std::runtime_error("no more");
                                  }});
  std::map<GenerationBatch::Id, Finished> finished;
  run_to_end(batch, finished);
  EXPECT_EQ(finished.size(), 4U);
  const auto expect = [&](GenerationBatch::Id which, const char* says) {
    ASSERT_TRUE(finished.at(which).error);
    try {
      std::rethrow_exception(finished.at(which).error);
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  expect(thrower, "enough");
  expect(filled, "700");
  expect(stopped, "no more");
  EXPECT_EQ(throws.own_tokens(), 9);
  EXPECT_EQ(full.own_tokens(), 690);
  EXPECT_EQ(watched.own_tokens(), 0);
  EXPECT_FALSE(finished.at(id).error);
  EXPECT_EQ(finished.at(id).result.tokens, alone(prompt(0, 6), {.max_tokens = 16}).tokens);
}

TEST_F(Batch, AStepThatFailsAnywhereLeavesEachAsItWasOrGoesOn) {
  const auto want_a = alone(prompt(0, 6), options(0)).tokens;
  const auto want_b = alone(prompt(1, 300), options(1)).tokens;
  std::int64_t failures = 0;
  bool failed = true;
  for (std::int64_t n = 1; failed; n += n / 4 + 1) {
    Session a = session();
    Session b = session();
    model_->logits(b, prompt(5, 3));
    model_->logits(a, prompt(5, 3));
    GenerationBatch batch(*model_);
    std::map<GenerationBatch::Id, Finished> finished;
    const auto first = batch.add(a, prompt(0, 6), options(0));
    batch.step();
    const auto second = batch.add(b, prompt(1, 300), options(1));
    {
      const ::test::FailingAt failing(n);
      run_to_end(batch, finished);
      failed = ::test::FailingAt::reached_after() >= 0;
    }
    ASSERT_EQ(finished.size(), 2U);
    const auto check = [&](GenerationBatch::Id id, Session& session, std::int64_t number,
                           const std::vector<Token>& text) {
      if (!finished.at(id).error) return;
      ++failures;
      EXPECT_THROW(std::rethrow_exception(finished.at(id).error), std::bad_alloc);
      EXPECT_EQ(session.own_tokens(), 3) << n;
      session.truncate(0);
      EXPECT_EQ(model_->generate(session, text, options(number)).tokens,
                number == 0 ? want_a : want_b);
    };
    check(first, a, 0, prompt(0, 6));
    check(second, b, 1, prompt(1, 300));
  }
  EXPECT_GT(failures, 10);
}

/// One session's rows may want memory when another's do not, and all together more than each alone.
TEST_F(Batch, WithoutRoomForAJointStepEachStepsAlone) {
  constexpr std::int64_t count = 3;
  std::int64_t failures = 0;
  bool failed = true;
  for (std::int64_t n = 1; failed; ++n) {
    std::vector<Session> sessions;
    for (std::int64_t i = 0; i < count; ++i) sessions.push_back(session());
    GenerationBatch batch(*model_);
    std::map<GenerationBatch::Id, Finished> finished;
    std::vector<GenerationBatch::Id> ids;
    for (std::int64_t i = 0; i < count; ++i) {
      ids.push_back(batch.add(sessions[static_cast<std::size_t>(i)], prompt(i, 6), options(i)));
      collect(batch.step(), finished);
    }
    {
      const ::test::FailingAt failing(
          n, [] { throw OutOfMemory("rows", 4096, 0, "ask for fewer tokens"); });
      collect(batch.step(), finished);
      failed = ::test::FailingAt::reached_after() >= 0;
    }
    if (failed) ++failures;
    run_to_end(batch, finished);
    for (std::int64_t i = 0; i < count; ++i) {
      const Finished& one = finished.at(ids[static_cast<std::size_t>(i)]);
      ASSERT_FALSE(one.error) << n;
      ASSERT_EQ(one.result.tokens, alone(prompt(i, 6), options(i)).tokens) << n;
    }
  }
  EXPECT_GT(failures, 5);
}

TEST_F(Batch, WhatCannotJoinIsRefusedAndChangesNothing) {
  Session a = session();
  Session b = session();
  Session other(model_->prefill(some_tokens(20, 101)));
  GenerationBatch batch(*model_);
  batch.add(a, prompt(0, 6), {.max_tokens = 4});
  EXPECT_THROW(batch.add(a, prompt(0, 6)), InvalidArgument) << "twice";
  EXPECT_THROW(batch.add(other, prompt(0, 6)), InvalidArgument) << "another context";
  EXPECT_THROW(batch.add(b, {}), InvalidArgument);
  EXPECT_THROW(batch.add(b, std::vector<Token>{101}), InvalidArgument);
  EXPECT_THROW(batch.add(b, prompt(0, 6), {.max_tokens = -1}), InvalidArgument);
  EXPECT_THROW(batch.add(b, prompt(0, 6), {.sampling = {.top_p = 0}}), InvalidArgument);
  EXPECT_THROW(batch.add(b, prompt(0, 701)), InvalidArgument) << "beyond its capacity";
  EXPECT_EQ(batch.size(), 1);
  std::map<GenerationBatch::Id, Finished> finished;
  run_to_end(batch, finished);
  EXPECT_EQ(finished.begin()->second.result.tokens, alone(prompt(0, 6), {.max_tokens = 4}).tokens);
}

TEST_F(Batch, RowsThatAllMayTakeTogetherNeedMemory) {
  const std::int64_t most = available_host_memory() / 10 * 7 /
                            RowStore::bytes_per_token(context_->shape(), context_->dtype());
  const RetrievalOptions large = {.k = TopK::same(16), .window = 32, .capacity = most};
  Session a(context_, large);
  Session b(context_, large);
  GenerationBatch batch(*model_);
  batch.add(a, prompt(0, 6), {.max_tokens = most});
  EXPECT_THROW(batch.add(b, prompt(1, 6), {.max_tokens = most}), OutOfMemory);
  EXPECT_EQ(batch.size(), 1);
  EXPECT_NO_THROW(batch.add(b, prompt(1, 6), {.max_tokens = 4})) << "what it asks for counts";
  batch.remove(0);
  batch.remove(1);
  EXPECT_THROW(
      model_->generate_together(std::vector{&a, &b}, std::vector{prompt(0, 6), prompt(1, 6)},
                                {.max_tokens = most}),
      OutOfMemory);
  EXPECT_EQ(a.own_tokens() + b.own_tokens(), 0);
}

TEST_F(Batch, WhatIsCalledWithinAStepCannotCallTheBatch) {
  Session a = session();
  Session b = session();
  GenerationBatch batch(*model_);
  int refused = 0;
  const auto id = batch.add(a, prompt(0, 6), {.max_tokens = 3}, [&](Token) {
    EXPECT_THROW(batch.step(), InvalidArgument);
    EXPECT_THROW(batch.remove(0), InvalidArgument);
    EXPECT_THROW(batch.add(b, prompt(0, 6)), InvalidArgument);
    return ++refused > 0;
  });
  std::map<GenerationBatch::Id, Finished> finished;
  run_to_end(batch, finished);
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(finished.at(id).result.tokens.size(), 3U);
}

TEST_F(Batch, TwoHundredAndFiftySixAndNoMore) {
  std::vector<std::unique_ptr<Session>> sessions;
  GenerationBatch batch(*model_);
  const auto more = [&] {
    sessions.push_back(std::make_unique<Session>(
        context_, RetrievalOptions{.k = TopK::same(16), .window = 32, .capacity = 16}));
    const auto i = std::ssize(sessions);
    return batch.add(*sessions.back(), prompt(i, 2),
                     {.max_tokens = 3, .sampling = options(i).sampling});
  };
  for (int i = 0; i < 256; ++i) more();
  EXPECT_THROW(more(), InvalidArgument);
  std::map<GenerationBatch::Id, Finished> finished;
  while (batch.size() == 256) collect(batch.step(), finished);
  EXPECT_NO_THROW(more());
  run_to_end(batch, finished);
  EXPECT_EQ(finished.size(), 257U);
  for (const auto& [id, one] : finished) {
    if (one.error || one.result.ended()) continue;
    EXPECT_EQ(one.result.tokens.size(), 3U);
  }
}

TEST_F(Batch, ThatIsLeftLeavesItsSessionsAsTheyWere) {
  Session a = session();
  model_->logits(a, prompt(5, 3));
  {
    GenerationBatch batch(*model_);
    batch.add(a, prompt(0, 6), {.max_tokens = 9});
    for (int steps = 0; steps < 3; ++steps) batch.step();
    EXPECT_EQ(a.own_tokens(), 3 + 6 + 2);
    GenerationBatch moved = std::move(batch);
    moved.step();
    EXPECT_EQ(a.own_tokens(), 3 + 6 + 3);
  }
  EXPECT_EQ(a.own_tokens(), 3);
}

}  // namespace
}  // namespace topkv
