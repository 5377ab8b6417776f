// Drafts from the text itself: answers are the answers without them, and sessions are as they would
// be.
#include "tests/support/drafts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/drafted_answer.h"
#include "src/model/generate/draft_length.h"
#include "src/session/own_codes.h"
#include "src/session/past_tokens.h"
#include "src/store/token_index.h"
#include "tests/support/bundled_model.h"
#include "tests/support/failing.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using ::test::Asked;
using ::test::ForcedDrafts;
using ::test::repeating_text;
using ::test::varied_options;

TEST(TokenIndex, FindsRowsAndForgetsThem) {
  std::mt19937 random(5);
  std::vector<Token> text;
  TokenIndex index;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 4 == 0 && !text.empty()) {
      text.resize(text.size() - random() % std::min<std::size_t>(text.size(), 20));
      index.truncate(std::ssize(text));
    } else {
      const std::size_t more = random() % 30;
      for (std::size_t i = 0; i < more; ++i) {
        text.push_back(static_cast<Token>(random() % 5) - (random() % 40 == 0 ? 5 : 0));
        index.append(text.back());
      }
    }
    ASSERT_EQ(index.size(), std::ssize(text));
    if (text.size() < 3) continue;
    // All places of a row are in its chain, the latest first.
    const std::size_t at = random() % (text.size() - 2);
    const auto row = std::span<const Token>(text).subspan(at, 3);
    if (std::ranges::any_of(row, [](Token t) { return t < 0; })) continue;
    std::vector<std::int64_t> expected;
    for (std::int64_t end = std::ssize(text) - 1; end >= 2; --end) {
      const auto other = std::span<const Token>(text).subspan(static_cast<std::size_t>(end - 2), 3);
      if (std::ranges::equal(other, row)) expected.push_back(end);
    }
    std::vector<std::int64_t> got;
    std::int64_t before = index.size();
    for (std::int64_t p = index.latest(row); p >= 0; p = index.earlier(p)) {
      ASSERT_LT(p, before);
      before = p;
      const auto other = std::span<const Token>(text).subspan(static_cast<std::size_t>(p - 2), 3);
      if (std::ranges::equal(other, row)) got.push_back(p);
    }
    ASSERT_EQ(got, expected);
  }
}

std::vector<Token> draft_of(const PastTokens& past, std::int64_t most,
                            std::int64_t* matched = nullptr) {
  TokenDraft draft;
  past.draft(most, draft);
  if (matched != nullptr) *matched = draft.matched;
  return draft.tokens;
}

PastTokens past_of(const std::vector<Token>& context, const std::vector<Token>& own) {
  PastTokens past(std::make_shared<const TokenIndex>(context), std::ssize(context));
  past.set(0, own);
  return past;
}

TEST(PastTokens, DraftsWhatFollowedTheLongestMatch) {
  using Tokens = std::vector<Token>;
  std::int64_t matched = 0;
  // In the context.
  EXPECT_EQ(draft_of(past_of({9, 1, 2, 3, 4, 5, 6, 7}, {8, 1, 2, 3}), 2, &matched), (Tokens{4, 5}));
  EXPECT_EQ(matched, 3);
  // The longest one, though another is later; of equal ones the latest.
  EXPECT_EQ(draft_of(past_of({6, 1, 2, 3, 4, 7, 1, 2, 3, 5, 0, 1, 2, 3, 8}, {6, 1, 2, 3}), 1),
            (Tokens{4}));
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4, 7, 1, 2, 3, 5}, {6, 1, 2, 3}), 1), (Tokens{5}));
  // In the session, which is later than the context.
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4}, {1, 2, 3, 5, 6, 1, 2, 3}), 9),
            (Tokens{5, 6, 1, 2, 3, 5, 6, 1, 2}));
  // Rows that begin in the context, and drafts that go on in the session.
  EXPECT_EQ(draft_of(past_of({0, 1, 2}, {3, 4, 0, 1, 2, 3}), 3), (Tokens{4, 0, 1}));
  EXPECT_EQ(draft_of(past_of({0, 1, 2}, {3, 4, 7, 0, 1, 2}), 3), (Tokens{3, 4, 7}));
  EXPECT_EQ(draft_of(past_of({5, 0, 1, 2}, {7, 7, 0, 1, 2, 7, 7}), 2), (Tokens{0, 1}));
  // A text that repeats itself.
  EXPECT_EQ(draft_of(past_of({}, {3, 3, 3, 3}), 5), (Tokens{3, 3, 3, 3, 3}));
  // Nothing to be found.
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4}, {1, 2}), 4), Tokens{});
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4}, {7, 8, 9}), 4), Tokens{});
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4}, {1, 2, 3}), 0), Tokens{});
  EXPECT_EQ(draft_of(past_of({1, 2, 3, 4}, {}), 4), Tokens{});
}

TEST(PastTokens, UnknownTokensMatchNothing) {
  PastTokens past(nullptr, 100);
  const std::vector<Token> text = {1, 2, 3, 4, 1, 2, 3};
  past.set(5, text);
  EXPECT_EQ(past.own(), 12);
  EXPECT_EQ(draft_of(past, 1), (std::vector<Token>{4}));
  past.set(9, std::span(text).first(2));  // 1, 2, 3, 4, 1, 2
  EXPECT_EQ(draft_of(past, 1), std::vector<Token>{});
  past.set(14, std::span(text).first(3));
  EXPECT_EQ(draft_of(past, 5), (std::vector<Token>{4, 1, 2}));  // up to the unknown ones
  past.truncate(3);
  past.set(3, text);
  EXPECT_EQ(past.own(), 10);
  // Tokens of another number than the context's say nothing.
  const std::vector<Token> other = {1, 2, 3, 4};
  PastTokens wrong(std::make_shared<const TokenIndex>(other), 5);
  wrong.set(0, std::span(text).first(3));
  EXPECT_EQ(draft_of(wrong, 5), std::vector<Token>{});
}

/// What speaks for the tokens of a draft after a match.
std::vector<DraftLength::Evidence> matched(std::int64_t before, std::int64_t tokens) {
  std::vector<DraftLength::Evidence> all;
  for (std::int64_t i = 0; i < tokens; ++i) all.push_back(DraftLength::of_match(before + i));
  return all;
}

std::int64_t chosen(const DraftLength& length, std::int64_t before, std::int64_t tokens) {
  return length.choose(matched(before, tokens), false);
}

TEST(DraftLength, DraftsWhatIsWorthItsTime) {
  DraftLength length(true, false, 0);
  EXPECT_EQ(chosen(length, 32, 15), 0) << "no step has been timed";
  length.time(1, 1.0);
  const std::int64_t first = chosen(length, 32, 15);
  EXPECT_GT(first, 0);
  EXPECT_EQ(chosen(length, 3, 15), 0) << "hardly ever right";
  for (int i = 0; i < 50; ++i) length.count(matched(32, 5), 5);
  EXPECT_GT(chosen(length, 32, 15), first);
  EXPECT_EQ(chosen(length, 32, 15), 15);
  EXPECT_EQ(chosen(length, 32, 4), 4);
  for (int i = 0; i < 50; ++i) length.count(matched(32, 5), 0);
  EXPECT_EQ(chosen(length, 32, 15), 0);
  // Steps that take as long as their tokens one by one are worth nothing.
  DraftLength slow(true, false, 0);
  slow.time(1, 1.0);
  for (int i = 0; i < 50; ++i) slow.count(matched(32, 5), 5);
  for (int i = 0; i < 50; ++i) slow.time(6, 6.0);
  EXPECT_EQ(chosen(slow, 32, 15), 0);
  // Taking back costs.
  DraftLength back(true, true, 0);
  DraftLength stays(true, false, 0);
  for (DraftLength* one : {&back, &stays}) one->time(1, 1.0);
  EXPECT_LE(chosen(back, 32, 15), chosen(stays, 32, 15));
}

// What a further token costs is a matter of the model and the machine.
TEST(DraftLength, BeginsWithTheShareThatIsKnown) {
  DraftLength first(true, false, 0);
  first.time(1, 1.0);
  EXPECT_EQ(first.share(), 0) << "no step of several tokens";
  EXPECT_EQ(chosen(first, 3, 15), 0);
  for (int i = 0; i < 4; ++i) first.time(5, 1.2);
  EXPECT_LT(first.share(), 0.3) << "the first times count most";
  for (int i = 0; i < 30; ++i) first.time(5, 1.2);
  EXPECT_NEAR(first.share(), 0.05, 0.02);
  const DraftLength next(true, false, 0, first.share());
  EXPECT_GT(chosen(next, 3, 15), 0) << "worth it where further tokens are cheap";
  // After bad times, drafts that are likely are tried again.
  DraftLength bad(true, false, 0);
  bad.time(1, 1.0);
  for (int i = 0; i < 50; ++i) bad.time(5, 9.0);
  EXPECT_EQ(chosen(bad, 32, 15), 0);
  const DraftLength later(true, false, 0, bad.share());
  EXPECT_GT(chosen(later, 32, 15), 0);
  // Without times, a further token costs what is assumed.
  const DraftLength untimed(false, false, 0.1, 1.5);
  EXPECT_GT(chosen(untimed, 32, 15), 0);
  EXPECT_EQ(untimed.share(), 0);
}

/// How often as fast an answer is with drafts from a text as without them, if a further token takes
/// this share of a step.
double gain(std::span<const Token> text, std::span<const Token> prompt,
            std::span<const Token> answer, double share, double known_share = 0) {
  const auto cost = [&](std::int64_t tokens) {
    return 1 + share * static_cast<double>(tokens - 1);
  };
  return bench::draft_answer(text, prompt, answer, cost, known_share).gain();
}

TEST(DraftLength, GainsWhatTheCostOfStepsAllows) {
  std::mt19937 random(5);
  std::vector<Token> text(1000);
  for (Token& token : text) token = static_cast<Token>(random() % 500);
  const std::vector<Token> prompt = {600, 601, 602};
  const auto quotation = [&](std::size_t tokens) { return std::span(text).subspan(300, tokens); };
  // A step of 16 tokens gives at most 16 / (1 + 15 * share) times the rate.
  for (const double share : {0.05, 0.1, 0.2, 0.3, 0.5}) {
    const double most = 16 / (1 + 15 * share);
    EXPECT_GT(gain(text, prompt, quotation(512), share), 0.7 * most) << share;
    EXPECT_GT(gain(text, prompt, quotation(64), share, share), std::min(2.0, 0.75 * most)) << share;
    EXPECT_LE(gain(text, prompt, quotation(512), share, share), most) << share;
  }
  // Three tokens that stand in the text, and then another one than there: not worth a draft for
  // long.
  std::vector<Token> misleading;
  for (std::size_t i = 0; i < 192; i += 3) {
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(4 * i);
    misleading.insert(misleading.end(), from, from + 3);
  }
  for (const double share : {0.05, 0.1, 0.3, 0.5, 1.0}) {
    EXPECT_GT(gain(text, prompt, misleading, share), 0.97) << share;
    EXPECT_GT(gain(text, prompt, misleading, share, share), 0.97) << share;
  }
  // Nothing of it stands in the text.
  std::vector<Token> own(200);
  std::iota(own.begin(), own.end(), 700);
  EXPECT_EQ(gain(text, prompt, own, 0.1, 0.1), 1);
}

using Evidence = std::vector<DraftLength::Evidence>;

/// The tokens that a draft model drafts, each with this probability.
std::int64_t guessed(const DraftLength& length, double probability) {
  Evidence all;
  do {
    all.push_back(DraftLength::of_probability(probability));
  } while (std::ssize(all) < 15 && length.guesses_on(all));
  return std::ssize(all);
}

TEST(DraftLength, GuessesWhatIsWorthItsTime) {
  DraftLength length(true, false, 0);
  EXPECT_FALSE(length.guesses()) << "no step has been timed";
  length.time(1, 1.0);
  EXPECT_TRUE(length.guesses()) << "to find out what it costs";
  EXPECT_EQ(guessed(length, 0.95), 2) << "the second is timed";
  for (int i = 0; i < 50; ++i) length.time_guess(0.05);
  for (int i = 0; i < 50; ++i) length.time(4, 1.3);
  EXPECT_TRUE(length.guesses());
  EXPECT_GT(guessed(length, 0.95), guessed(length, 0.1));
  const Evidence sure(4, DraftLength::of_probability(0.95));
  const Evidence unsure(4, DraftLength::of_probability(0.1));
  EXPECT_GT(length.choose(sure, true), length.choose(unsure, true));
  // Guesses that are always wrong are tried now and then.
  for (int i = 0; i < 50; ++i)
    for (const double p : {0.1, 0.5, 0.8, 0.95})
      length.count(Evidence(2, DraftLength::of_probability(p)), 0);
  std::int64_t tries = 0;
  for (int i = 0; i < 1000; ++i) tries += length.guesses() ? 1 : 0;
  EXPECT_GT(tries, 2);
  EXPECT_LT(tries, 20);
  EXPECT_EQ(length.choose(sure, true), 0);
  // As are guesses that are right but as slow as steps.
  DraftLength slow(true, false, 0);
  slow.time(1, 1.0);
  for (int i = 0; i < 50; ++i) slow.time_guess(1.0);
  for (int i = 0; i < 50; ++i) slow.count(sure, 4);
  tries = 0;
  for (int i = 0; i < 1000; ++i) tries += slow.guesses() ? 1 : 0;
  EXPECT_LT(tries, 20);
  // Without times, the cost is what it was said to be.
  DraftLength untimed(false, false, 0.1);
  EXPECT_TRUE(untimed.guesses());
  DraftLength large(false, false, 0.9);
  for (int i = 0; i < 20; ++i) tries += large.guesses() ? 1 : 0;
  EXPECT_LT(tries, 40);
}

class Drafts : public testing::TestWithParam<std::string> {
 protected:
  static Model load() {
    const auto fixtures = std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";
    return GetParam() == "bundled" ? ::test::bundled(Device()) : Model::load(fixtures / GetParam());
  }
};

// The drafts are of tokens that the context is said to have: those of the answer, but for some.
TEST_P(Drafts, ChangeNoAnswer) {
  const Model model = load();
  const RetrievalOptions retrieval{.k = TopK::same(8), .window = 40};
  std::int64_t accepted = 0;
  std::int64_t rejected = 0;
  for (unsigned seed = 0; seed < 9; ++seed) {
    const auto all = repeating_text(260, seed);
    const auto context = model.prefill(std::span(all).first(200), {.kv_dtype = DType::f32});
    ASSERT_TRUE(context->knows_tokens());
    const std::span<const Token> turns[] = {std::span(all).subspan(200, 40),
                                            std::span(all).subspan(240)};
    const GenerateOptions options = varied_options(seed);
    Session alone(context, retrieval);
    std::vector<Token> said;
    std::vector<Asked> wanted;
    for (const auto turn : turns) {
      wanted.push_back(::test::ask(model, alone, turn, options, Draft::none));
      said.insert(said.end(), turn.end() - 5, turn.end());
      const auto& answer = wanted.back().result.tokens;
      for (std::size_t i = 0; i < answer.size(); ++i)
        said.push_back(i % 9 == 8 ? Token{5} : answer[i]);
    }
    said.resize(200, 4);
    Session drafting(context->with_tokens(said), retrieval);
    const ForcedDrafts forced(1 + 5 * (seed % 4));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Asked got = ::test::ask(model, drafting, turns[i], options, Draft::automatic);
      ::test::expect_equal(got, wanted[i]);
      accepted += got.result.accepted;
      rejected += got.result.drafted - got.result.accepted;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(rejected, 100);
}

INSTANTIATE_TEST_SUITE_P(Families, Drafts,
                         testing::Values("bundled", "llama3", "qwen3-5", "qwen3-next", "granite-h",
                                         "lfm2", "gemma3", "gpt-oss", "deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// The bundled model repeats a text that it has read before.
class DraftedText : public testing::Test {
 protected:
  static const Model& model() {
    static const Model model = ::test::bundled(Device());
    return model;
  }
  static const std::vector<Token>& text() {
    static const std::vector<Token> text = repeating_text(300, 3);
    return text;
  }
  static std::shared_ptr<const Context> context() {
    static const auto context = model().prefill(text(), {.kv_dtype = DType::f32});
    return context;
  }
  /// The begin of the text, which the answer goes on with.
  static std::span<const Token> prompt() { return std::span(text()).first(40); }
  static GenerateResult answer(const GenerateOptions& options, Draft draft,
                               const TokenFn& on_token = {}) {
    Session session(context());
    GenerateOptions with = options;
    with.draft = draft;
    return model().generate(session, prompt(), with, on_token);
  }
  const ForcedDrafts forced_{15};
};

TEST_F(DraftedText, IsCounted) {
  const GenerateResult got = answer({.max_tokens = 60}, Draft::automatic);
  EXPECT_GT(got.accepted, 0);
  EXPECT_GT(got.tokens_per_step(), 1.2);
  EXPECT_EQ(got.steps, 59);
  EXPECT_EQ(answer({.max_tokens = 60}, Draft::none).tokens_per_step(), 1);
  EXPECT_EQ(GenerateResult().tokens_per_step(), 1);
  EXPECT_EQ(answer({.max_tokens = 60}, Draft::lookup).tokens, got.tokens);
}

// Wherever an answer ends within a draft, all is as without it.
TEST_F(DraftedText, EndsWhereItWouldEnd) {
  const GenerateResult whole = answer({.max_tokens = 60}, Draft::none);
  for (std::int64_t tokens = 0; tokens <= 40; tokens += tokens < 18 ? 1 : 11) {
    Session alone(context());
    Session drafting(context());
    const GenerateOptions options{.max_tokens = tokens};
    ::test::expect_equal(::test::ask(model(), drafting, prompt(), options, Draft::automatic),
                         ::test::ask(model(), alone, prompt(), options, Draft::none));
  }
  for (std::int64_t capacity = 40; capacity <= 80; capacity += 5) {
    Session alone(context(), {.capacity = capacity});
    Session drafting(context(), {.capacity = capacity});
    const std::int64_t fits = capacity - 40 + 1;  // the last token is not fed
    const auto generate = [&](Session& session, Draft draft, std::int64_t tokens) {
      return model().generate(session, prompt(), {.max_tokens = tokens, .draft = draft}).tokens;
    };
    EXPECT_THROW(generate(drafting, Draft::automatic, fits + 1), InvalidArgument);
    EXPECT_EQ(drafting.own_tokens(), 0);
    EXPECT_EQ(generate(drafting, Draft::automatic, fits), generate(alone, Draft::none, fits));
  }
  for (std::size_t i = 0; i + 1 < whole.tokens.size(); i += 7) {
    const std::vector<Token> two = {whole.tokens[i], whole.tokens[i + 1]};
    const GenerateOptions options{.max_tokens = 60, .stop = {model().tokenizer().decode(two)}};
    if (options.stop[0].empty() || options.stop[0].find("\xef\xbf\xbd") != std::string::npos)
      continue;
    Session alone(context());
    Session drafting(context());
    ::test::expect_equal(::test::ask(model(), drafting, prompt(), options, Draft::automatic, true),
                         ::test::ask(model(), alone, prompt(), options, Draft::none, true));
  }
}

TEST_F(DraftedText, EndsWhereACallbackSaysSo) {
  for (std::size_t last = 1; last < 40; last += 4) {
    for (const bool throws : {false, true}) {
      const auto run = [&](Draft draft, std::int64_t& own) {
        Session session(context());
        std::vector<Token> told;
        const TokenFn on_token = [&](Token token) {
          told.push_back(token);
          if (told.size() < last) return true;
          if (throws) throw std::runtime_error("enough");
          return false;
        };
        try {
          model().generate(session, prompt(), {.max_tokens = 60, .draft = draft}, on_token);
          EXPECT_FALSE(throws);
        } catch (const std::runtime_error&) {
        }
        own = session.own_tokens();
        return told;
      };
      std::int64_t own_alone = 0;
      std::int64_t own_drafting = 0;
      EXPECT_EQ(run(Draft::none, own_alone), run(Draft::automatic, own_drafting));
      EXPECT_EQ(own_alone, own_drafting);
      EXPECT_EQ(own_drafting, throws ? 0 : 39 + static_cast<std::int64_t>(last));
    }
  }
}

TEST_F(DraftedText, IsTheSameInABatch) {
  Session alone(context());
  const GenerateOptions options{.max_tokens = 50};
  const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
  Session one(context());
  Session other(context());
  GenerationBatch batch(model());
  batch.add(one, prompt(), options);
  std::vector<GenerateResult> results(2);
  const auto collect = [&](auto finished) {
    for (auto& done : finished) {
      ASSERT_FALSE(done.error);
      results[static_cast<std::size_t>(done.id)] = std::move(done.result);
    }
  };
  collect(batch.step());
  collect(batch.step());
  batch.add(other, prompt(), {.max_tokens = 5});
  while (batch.size() > 0) collect(batch.step());
  EXPECT_EQ(results[0].tokens, want.result.tokens);
  EXPECT_GT(results[0].accepted, 0);
  EXPECT_EQ(results[1].accepted, 0) << "it stepped beside the other one";
  EXPECT_EQ(one.own_tokens(), want.own);
  // What is removed in the middle keeps what it told.
  Session removed(context());
  const auto id = batch.add(removed, prompt(), options);
  batch.step();
  batch.step();
  const GenerateResult some = batch.remove(id);
  EXPECT_GT(some.accepted, 0);
  EXPECT_EQ(removed.own_tokens(), 40 + std::ssize(some.tokens) - 1);
}

// Sessions that find no room for a joint step take it one by one, without drafts.
TEST_F(DraftedText, IsTheSameWithoutRoomForAJointStep) {
  const std::span<const Token> prompts[] = {prompt(), std::span(text()).subspan(120, 40)};
  std::vector<Token> wanted[2];
  for (std::size_t i = 0; i < 2; ++i) {
    Session alone(context());
    wanted[i] =
        model().generate(alone, prompts[i], {.max_tokens = 40, .draft = Draft::none}).tokens;
  }
  Session sessions[] = {Session(context()), Session(context())};
  GenerationBatch batch(model());
  for (std::size_t i = 0; i < 2; ++i) batch.add(sessions[i], prompts[i], {.max_tokens = 40});
  std::int64_t failures = 0;
  while (batch.size() > 0) {
    const ::test::FailingAt failing(
        1, [] { throw OutOfMemory("rows", 4096, 0, "ask for fewer tokens"); });
    const bool joint = batch.size() == 2 && batch.reading() == 0;
    if (!joint) fault_hook = nullptr;
    for (const auto& done : batch.step()) {
      const auto i = static_cast<std::size_t>(done.id);
      ASSERT_FALSE(done.error);
      EXPECT_EQ(done.result.tokens, wanted[i]) << i;
      EXPECT_EQ(sessions[i].own_tokens(), 40 + 40 - 1) << i;
    }
    if (joint && ::test::FailingAt::reached_after() >= 0) ++failures;
  }
  EXPECT_GT(failures, 10);
}

// A step that finds no room is made again without its draft.
TEST_F(DraftedText, IsTheSameWithoutRoomForADraft) {
  Session plain(context());
  const std::vector<Token> wanted =
      model().generate(plain, prompt(), {.max_tokens = 40, .draft = Draft::none}).tokens;
  std::int64_t gone_on = 0;
  for (std::int64_t failing_step = 1; failing_step <= 12; ++failing_step) {
    Session session(context());
    GenerationBatch batch(model());
    batch.add(session, prompt(), {.max_tokens = 40});
    bool failed = false;
    for (std::int64_t steps = 0; batch.size() > 0; ++steps) {
      const ::test::FailingAt failing(
          3, [] { throw OutOfMemory("rows", 4096, 0, "ask for fewer tokens"); });
      const bool fails = batch.reading() == 0 && steps == failing_step;
      if (!fails) fault_hook = nullptr;
      for (const auto& done : batch.step()) {
        if (done.error) continue;  // that step had no draft
        EXPECT_EQ(done.result.tokens, wanted) << failing_step;
        EXPECT_EQ(session.own_tokens(), std::ssize(prompt()) + 40 - 1) << failing_step;
        if (failed) ++gone_on;
      }
      if (fails) failed = ::test::FailingAt::reached_after() >= 0;
    }
  }
  EXPECT_GT(gone_on, 1);
}

TEST_F(DraftedText, IsFoundByForksAndInFiles) {
  const GenerateOptions options{.max_tokens = 30};
  const TempDirectory temp;
  save_context(*context(), temp.path() / "known", {.tokens = text()});
  save_context(*context(), temp.path() / "unknown");
  const auto known = load_context(temp.path() / "known").context;
  const auto unknown = load_context(temp.path() / "unknown").context;
  EXPECT_TRUE(known->knows_tokens());
  EXPECT_FALSE(unknown->knows_tokens());
  EXPECT_TRUE(known->with_index("mean")->knows_tokens());
  EXPECT_TRUE(unknown->with_tokens(text())->knows_tokens());
  EXPECT_THROW(unknown->with_tokens(prompt()), InvalidArgument);
  const auto accepted = [&](Session& session) {
    return model().generate(session, prompt(), options).accepted;
  };
  Session of_file(known);
  Session of_other(unknown->with_tokens(text()));
  const std::int64_t expected = accepted(of_file);
  EXPECT_GT(expected, 0);
  EXPECT_EQ(accepted(of_other), expected);
  // The answer itself may repeat.
  Session blind(unknown);
  EXPECT_LT(accepted(blind), expected);
  Session fork = blind.fork();
  const auto drafted = [&](Session& session) {
    return model().generate(session, prompt(), {.max_tokens = 100}).drafted;
  };
  EXPECT_EQ(drafted(fork), drafted(blind)) << "the fork knows the first turn";
}

// Steps of several tokens do not hide when codes of own tokens are due.
TEST_F(DraftedText, IsTheSameWithCodesOfOwnTokens) {
  const auto coded = context()->ready_for({.index = "codes:k=16,v=8"});
  const std::int64_t on_host = std::exchange(least_coded_on_host, 1024);
  const auto long_prompt = repeating_text(1100, 7);
  const RetrievalOptions retrieval{
      .index = "codes:k=16,v=8", .k = TopK::same(8), .window = 64, .capacity = 4096};
  Session alone(coded, retrieval);
  Session drafting(coded, retrieval);
  const auto first = std::span(long_prompt).first(1050);
  const GenerateOptions options{.max_tokens = 120};
  ::test::expect_equal(::test::ask(model(), drafting, first, options, Draft::automatic),
                       ::test::ask(model(), alone, first, options, Draft::none));
  EXPECT_EQ(drafting.stats().coded_tokens, 1024);
  least_coded_on_host = on_host;
}

TEST(DraftNames, AreReadAsTheyAreWritten) {
  for (const Draft draft : {Draft::automatic, Draft::none, Draft::lookup})
    EXPECT_EQ(parse_draft(name_of(draft)), draft);
  EXPECT_THROW(parse_draft("some"), InvalidArgument);
}

}  // namespace
}  // namespace topkv
