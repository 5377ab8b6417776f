// Models of which some layers keep a recurrent state: contexts, files, forks and sessions have it
// beside the rows, and what is read again or in other pieces gives the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/generation.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// The parameter is a fixture of parity_test.cc, one for each kind of recurrence.
class Hybrid : public testing::TestWithParam<std::string> {
 protected:
  static const Model& model() {
    static std::map<std::string, Model> models;
    const auto found = models.find(GetParam());
    if (found != models.end()) return found->second;
    const auto fixtures = std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";
    return models.emplace(GetParam(), Model::load(fixtures / GetParam())).first->second;
  }
  static std::vector<Token> text(std::int64_t tokens, std::int64_t number = 0) {
    std::vector<Token> all;
    for (std::int64_t i = 0; i < tokens; ++i)
      all.push_back(static_cast<Token>(3 + (number * 17 + i * i * 3 + i / 7) % 94));
    return all;
  }
  static std::shared_ptr<const Context> read(std::int64_t tokens, std::int64_t chunk = 0) {
    return model().prefill(text(tokens), {.chunk = chunk, .kv_dtype = DType::f32});
  }
  static Session session(const std::shared_ptr<const Context>& context) {
    return Session(context, {.k = TopK::same(1 << 20), .window = 16, .capacity = 2000});
  }
  /// Logits of tokens that follow a session, which is then as before.
  static std::vector<float> next(Session& session) {
    const std::int64_t own = session.own_tokens();
    session.snapshot();
    auto logits = model().logits(session, text(5, 9));
    session.truncate(own);
    return logits;
  }
  static void expect_near(const std::vector<float>& a, const std::vector<float>& b,
                          double most = 2e-5) {
    ASSERT_EQ(a.size(), b.size());
    double largest = 0;
    double off = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(double{a[i]}));
      off = std::max(off, std::abs(double{a[i]} - b[i]));
    }
    EXPECT_LE(off, most * largest);
    EXPECT_GT(largest, 0);
  }
};

TEST_P(Hybrid, PrefillsInPiecesGiveTheSame) {
  Session whole = session(read(2500, 2500));  // a recurrence takes it in pieces of its own
  const auto expected = next(whole);
  for (const std::int64_t chunk : {7, 1024, 1025}) {
    Session other = session(read(2500, chunk));
    expect_near(next(other), expected);
  }
}

TEST_P(Hybrid, TokenByTokenIsTheSame) {
  Session whole = session(read(200));
  Session one_by_one = session(read(120));
  const auto all = text(200);
  for (std::size_t i = 120; i < 200; ++i) model().logits(one_by_one, std::span(all).subspan(i, 1));
  expect_near(next(one_by_one), next(whole));
}

// A turn of one piece, and of several: the last tokens of each are read by themselves.
TEST_P(Hybrid, TurnsAreTheSameAsOtherSteps) {
  for (const std::int64_t tokens : {700, 1500}) {
    const auto all = text(120 + tokens);
    const auto prompt = std::span(all).subspan(120);
    Session found = session(read(120));
    Session reads(
        read(120),
        {.k = TopK::same(1 << 20), .window = 16, .turns = PrefillAttention{}, .capacity = 2000});
    for (Session* one : {&found, &reads}) model().generate(*one, prompt, {.max_tokens = 0});
    EXPECT_EQ(reads.own_tokens(), tokens);
    EXPECT_EQ(reads.reachable(tokens - 1), tokens - 16);
    EXPECT_LT(reads.stats().steps, found.stats().steps / 10);
    expect_near(next(reads), next(found));
    reads.truncate(tokens - 16);
    model().generate(reads, prompt.last(16), {.max_tokens = 0});
    expect_near(next(reads), next(found));
  }
}

TEST_P(Hybrid, ASavedContextHasTheStates) {
  const TempDirectory temp;
  const auto context = read(150, 64);
  save_context(*context, temp.path() / "context");
  for (const bool mapped : {false, true}) {
    const auto loaded = load_context(temp.path() / "context", {.mapped = mapped});
    Session one = session(context);
    Session other = session(loaded.context);
    EXPECT_EQ(next(one), next(other));
  }
}

TEST_P(Hybrid, AForkGoesOnByItself) {
  Session one = session(read(100));
  model().logits(one, text(30, 1));
  Session fork = one.fork();
  const auto expected = next(fork);
  model().logits(one, text(40, 2));
  EXPECT_EQ(next(fork), expected);
  EXPECT_NE(next(one), expected);
}

TEST_P(Hybrid, AConversationGoesBackToWhereAQuestionEndsAndReadsOn) {
  const auto question = text(300, 4);
  Session one = session(read(100));
  const auto first = model().generate(one, question, {.max_tokens = 12});
  ASSERT_EQ(first.tokens.size(), 12U);

  // The answer is taken back, and the end of the prompt, as a template without thoughts does it.
  const std::int64_t kept = one.reachable(295);
  EXPECT_EQ(kept, 284);
  EXPECT_EQ(one.reachable(305), 300);
  EXPECT_EQ(one.reachable(311), 311);
  one.truncate(kept);
  auto other = question;
  other.resize(static_cast<std::size_t>(kept));
  Session again = session(read(100));
  model().logits(again, other);
  expect_near(next(one), next(again));
  EXPECT_THROW(one.truncate(100), InvalidArgument);
  one.truncate(0);
  Session fresh = session(read(100));
  expect_near(next(one), next(fresh), 0);
}

TEST_P(Hybrid, ACallThatFailsLeavesTheSessionAsItWas) {
  Session one = session(read(100));
  model().generate(one, text(20, 3), {.max_tokens = 5});
  const auto before = next(one);
  const std::int64_t own = one.own_tokens();
  for (const int at : {1, 2, 4}) {
    int reports = 0;
    GenerateOptions options = {.max_tokens = 5};
    options.progress = [&](const Progress&) {
      if (++reports == at) throw std::runtime_error("stop");
    };
    EXPECT_THROW(model().generate(one, text(600, 5), options), std::runtime_error);
    EXPECT_EQ(one.own_tokens(), own);
    EXPECT_EQ(next(one), before);
  }
}

TEST_P(Hybrid, AnswersThatGrowTogetherAreThoseOfEachAlone) {
  const auto context = read(100);
  std::vector<std::vector<Token>> alone;
  for (std::int64_t i = 0; i < 3; ++i) {
    Session one = session(context);
    alone.push_back(model().generate(one, text(20 + 30 * i, i), {.max_tokens = 10}).tokens);
  }
  std::vector<Session> sessions;
  for (std::int64_t i = 0; i < 3; ++i) sessions.push_back(session(context));
  GenerationBatch batch(model());
  std::vector<std::vector<Token>> prompts;
  for (std::int64_t i = 0; i < 3; ++i) prompts.push_back(text(20 + 30 * i, i));
  std::vector<GenerationBatch::Id> ids;
  for (std::size_t i = 0; i < 3; ++i)
    ids.push_back(batch.add(sessions[i], prompts[i], {.max_tokens = 10}));
  while (batch.size() > 0) {
    for (const auto& one : batch.step()) {
      ASSERT_EQ(one.error, nullptr);
      const auto at = std::ranges::find(ids, one.id) - ids.begin();
      EXPECT_EQ(one.result.tokens, alone[static_cast<std::size_t>(at)]);
    }
  }
}

TEST_P(Hybrid, AnAttentionOfTheCallersHasNoStates) {
  EXPECT_THROW(model().logits(text(3), 0, [](const AttentionStep&) {}), Unsupported);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Hybrid,
                         testing::Values("qwen3-5", "lfm2", "granite-h", "granite-h-moe",
                                         "nemotron-h", "nemotron-h-moe", "lfm2-moe"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace topkv
