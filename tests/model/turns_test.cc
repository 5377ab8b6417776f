// Prompts that sessions read as turns: cut into pieces, beside other sessions, and taken back.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/bundled_model.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using ::test::Place;

class ModelTurns : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }
  static void TearDownTestSuite() {  // a device goes before the program's end
    contexts.clear();
    models.clear();
  }
  static bool on_cuda() { return GetParam() != "cpu"; }
  static const Model& model() {
    const std::string& device = GetParam();
    if (const auto found = models.find(device); found != models.end()) return found->second;
    return models.emplace(device, ::test::bundled(Place(device).device())).first->second;
  }
  static const std::vector<Token>& text() {
    static const std::vector<Token> text = ::test::text_with_fact(model(), 2100);
    return text;
  }
  /// The first 300 tokens of the text.
  static std::shared_ptr<const Context> context() {
    std::shared_ptr<const Context>& context = contexts[GetParam()];
    if (context == nullptr) {
      context = model().prefill(std::vector<Token>(text().begin(), text().begin() + 300),
                                {.kv_dtype = on_cuda() ? DType::bf16 : DType::f32});
    }
    return context;
  }
  /// The other tokens, and a question.
  static std::vector<Token> prompt() {
    const std::vector<Token>& all = text();
    std::vector<Token> prompt(all.begin() + 300, all.end());
    const std::vector<Token> question = ::test::question(model());
    prompt.insert(prompt.end(), question.begin(), question.end());
    return prompt;
  }
  static Session session(const std::optional<PrefillAttention>& turns) {
    return Session(context(), {.k = TopK::same(1 << 20), .turns = turns}, model().device());
  }
  static GenerateResult ask(Session& session) {
    return model().generate(session, prompt(),
                            {.max_tokens = 12, .logprobs = 0, .prompt_logprobs = 0});
  }
  static void expect_near(const std::vector<TokenLogprobs>& got,
                          const std::vector<TokenLogprobs>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].chosen.token, want[i].chosen.token) << i;
      EXPECT_NEAR(got[i].chosen.logprob, want[i].chosen.logprob, on_cuda() ? 0.25 : 2e-3) << i;
    }
  }

 private:
  inline static std::map<std::string, Model> models;
  inline static std::map<std::string, std::shared_ptr<const Context>> contexts;
};

TEST_P(ModelTurns, OfDenseAttentionAreStepsThatFindAllRows) {
  ASSERT_GT(prompt().size(), 1700U);  // more than a piece
  Session found = session({});
  const GenerateResult want = ask(found);
  EXPECT_NE(model().tokenizer().decode(want.tokens).find(::test::answer), std::string::npos);
  for (const PrefillAttention& turns :
       {PrefillAttention{}, PrefillAttention{.mode = Prefill::sparse, .mass = 1}}) {
    Session reads = session(turns);
    const GenerateResult got = ask(reads);
    EXPECT_EQ(got.tokens, want.tokens);
    expect_near(got.prompt_logprobs, want.prompt_logprobs);
    expect_near(got.logprobs, want.logprobs);
    EXPECT_EQ(reads.own_tokens(), found.own_tokens());
    EXPECT_LT(reads.stats().steps, model().config().attention.layers * 30);
    // So few keys are all chosen.
    EXPECT_EQ(reads.turn_shares()[1].keys, reads.turn_shares()[1].dense_keys);
    EXPECT_EQ(reads.turn_shares()[1].queries > 0, turns.mode == Prefill::sparse);
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, ModelTurns, testing::ValuesIn(::test::devices));

const PrefillAttention few_keys{
    .mode = Prefill::sparse, .window = 128, .keys = 256, .least_keys = 128};

// The answer follows them.
TEST_P(ModelTurns, DoNotHaveTheLastTokensOfAPrompt) {
  const std::vector<Token> all = prompt();
  const std::int64_t layers = model().config().attention.layers;
  for (const std::int64_t tokens : {256, 260, 271, 272, 600}) {
    Session reads = session(few_keys);
    model().generate(reads, {all.begin(), all.begin() + tokens}, {.max_tokens = 1});
    const bool has_turn = tokens >= 272;
    EXPECT_EQ(reads.turn_shares()[1].queries,
              has_turn ? (tokens - 16) * model().config().attention.kv_heads : 0)
        << tokens;
    EXPECT_EQ(reads.stats().steps, (has_turn ? 16 : tokens) * layers) << tokens;
  }
}

TEST_P(ModelTurns, BesideOtherSessionsAreAsAlone) {
  Session alone = session(few_keys);
  const GenerateResult want = ask(alone);
  EXPECT_LT(alone.turn_shares()[1].key_share(), 0.9);
  Session plain = session({});
  const GenerateResult want_plain = ask(plain);

  std::vector<Session> sessions;
  for (const bool turns : {true, false, true})
    sessions.push_back(turns ? session(few_keys) : session({}));
  GenerationBatch batch(model());
  for (Session& one : sessions)
    batch.add(one, prompt(), {.max_tokens = 12, .logprobs = 0, .prompt_logprobs = 0});
  std::size_t left = sessions.size();
  while (batch.size() > 0) {
    for (const auto& [id, result, error] : batch.step()) {
      ASSERT_FALSE(error);
      const GenerateResult& of = id == 1 ? want_plain : want;
      EXPECT_EQ(result.tokens, of.tokens) << id;
      expect_near(result.prompt_logprobs, of.prompt_logprobs);
      --left;
    }
  }
  EXPECT_EQ(left, 0U);
  EXPECT_GT(batch.times().matmul, 0);
}

TEST_P(ModelTurns, ThatFailLeaveTheSessionAsItWas) {
  Session once = session(few_keys);
  const GenerateResult want = ask(once);
  Session again = session(few_keys);
  for (const int place : {1, 700, 1750}) {
    int told = 0;
    EXPECT_THROW(model().generate(again, prompt(),
                                  {.max_tokens = 1,
                                   .prompt_logprobs = 0,
                                   .on_prompt_logprobs =
                                       [&](const TokenLogprobs&) {
                                         if (++told == place) throw std::runtime_error("stop");
                                       }}),
                 std::runtime_error);
    EXPECT_EQ(again.own_tokens(), 0);
  }
  const GenerateResult got = ask(again);
  EXPECT_EQ(got.tokens, want.tokens);
  for (std::size_t i = 0; i < want.prompt_logprobs.size(); ++i)
    EXPECT_EQ(got.prompt_logprobs[i].chosen.logprob, want.prompt_logprobs[i].chosen.logprob);
}

}  // namespace
}  // namespace topkv
