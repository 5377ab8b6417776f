// Drafts of another model: answers are the answers without them, and sessions are as they would be.
#include "topkv/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/bundled_model.h"
#include "tests/support/drafts.h"
#include "tests/support/failing.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using ::test::Asked;
using ::test::ForcedDrafts;
using ::test::repeating_text;
using ::test::varied_options;

std::shared_ptr<const Model> loaded(const std::string& name) {
  const auto fixtures = std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";
  return std::make_shared<const Model>(name == "bundled" ? ::test::bundled(Device())
                                                         : Model::load(fixtures / name));
}

GenerateOptions with(const std::shared_ptr<const DraftModel>& drafts, GenerateOptions options) {
  options.draft_model = drafts;
  return options;
}

/// A model that answers, and one that drafts for it.
struct Pair {
  const char* model;
  const char* draft;
};

class DraftModels : public testing::TestWithParam<Pair> {};

// Drafts are rejected here and there: the draft model reads less, or is another model.
TEST_P(DraftModels, ChangeNoAnswer) {
  const std::shared_ptr<const Model> model = loaded(GetParam().model);
  const bool same = GetParam().draft == std::string(GetParam().model);
  const auto small = same ? model : loaded(GetParam().draft);
  const auto drafts =
      std::make_shared<const DraftModel>(small, *model, DraftModelOptions{.window = 64});
  const RetrievalOptions retrieval{.k = TopK::same(8), .window = 40};
  std::int64_t accepted = 0;
  std::int64_t rejected = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    const auto all = repeating_text(260, seed);
    const auto context = model->prefill(std::span(all).first(200), {.kv_dtype = DType::f32});
    const std::span<const Token> turns[] = {std::span(all).subspan(200, 40),
                                            std::span(all).subspan(240)};
    const GenerateOptions options = varied_options(seed);
    Session alone(context, retrieval);
    Session drafting(context, retrieval);
    const ForcedDrafts forced(1 + 5 * (seed % 4));
    for (const auto turn : turns) {
      const Asked want = ::test::ask(*model, alone, turn, options, Draft::none);
      const Asked got =
          ::test::ask(*model, drafting, turn, with(drafts, options), Draft::automatic);
      ::test::expect_equal(got, want);
      accepted += got.result.model_accepted;
      rejected += got.result.model_drafted - got.result.model_accepted;
      EXPECT_LE(got.result.model_drafted, got.result.drafted);
      EXPECT_LE(got.result.model_accepted, got.result.accepted);
    }
    EXPECT_EQ(alone.stats().draft_bytes, 0);
    EXPECT_EQ(drafting.stats().draft_bytes, drafts->session_bytes());
    EXPECT_GT(drafts->session_bytes(), 0);
  }
  EXPECT_GT(rejected, 50);
  EXPECT_GT(accepted, same ? 50 : -1);
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, DraftModels,
    testing::Values(Pair{"bundled", "bundled"}, Pair{"llama3", "llama3"}, Pair{"llama3", "qwen3-5"},
                    Pair{"qwen3-5", "qwen3-5"}, Pair{"qwen3-5", "llama3"},
                    Pair{"granite-h", "granite-h"}, Pair{"lfm2", "lfm2"}, Pair{"gemma3", "gpt-oss"},
                    Pair{"deepseek-v3", "deepseek-v3"}, Pair{"llama3", "qwen2-chunks"}),
    [](const auto& info) {
      std::string name = info.param.model + std::string("_by_") + info.param.draft;
      std::ranges::replace(name, '-', '_');
      return name;
    });

/// The bundled model, and itself as its draft model: with all of the text, and with the end of it.
class DraftedByModel : public testing::Test {
 protected:
  static const std::shared_ptr<const Model>& shared_model() {
    static const std::shared_ptr<const Model> model = loaded("bundled");
    return model;
  }
  static const Model& model() { return *shared_model(); }
  static std::shared_ptr<const DraftModel> drafts(std::int64_t window) {
    return std::make_shared<const DraftModel>(
        shared_model(), model(), DraftModelOptions{.window = window, .rows = DType::f32});
  }
  /// Random tokens, so that no lookup finds anything.
  static const std::vector<Token>& text() {
    static const std::vector<Token> text = [] {
      std::mt19937 random(7);
      std::vector<Token> all(300);
      for (Token& token : all) token = static_cast<Token>(5 + random() % 1000);
      return all;
    }();
    return text;
  }
  static std::shared_ptr<const Context> context() {
    static const auto context = model().prefill(text(), {.kv_dtype = DType::f32});
    return context;
  }
  static std::span<const Token> prompt() { return std::span(text()).subspan(50, 40); }
  /// All is attended, so that the model is its draft model.
  static RetrievalOptions dense() { return {.window = 4096}; }
};

TEST_F(DraftedByModel, AcceptsAllOfAnEqualModel) {
  for (const std::int64_t length : {1, 4, 15}) {
    const ForcedDrafts forced(length);
    Session session(context(), dense());
    const std::int64_t tokens = 5 * (1 + length) + 1;
    const GenerateResult got =
        model().generate(session, prompt(), {.max_tokens = tokens, .draft_model = drafts(1024)});
    EXPECT_EQ(std::ssize(got.tokens), tokens);
    EXPECT_EQ(got.drafted, got.accepted);
    EXPECT_GT(got.model_drafted, 0);
    EXPECT_EQ(got.steps, tokens - 1);
    EXPECT_EQ(got.steps - got.accepted, 5) << length;
    EXPECT_EQ(got.tokens_per_step(), static_cast<double>(1 + length));
  }
}

// The text grows beyond the window, several times.
TEST_F(DraftedByModel, GoesOnBeyondItsWindow) {
  const ForcedDrafts forced(3);
  for (const std::int64_t window : {32, 48, 200, 350}) {
    Session alone(context(), dense());
    Session drafting(context(), dense());
    const GenerateOptions options{.max_tokens = 150};
    const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
    const auto of_window = drafts(window);
    EXPECT_EQ(of_window->window(), window);
    const Asked got =
        ::test::ask(model(), drafting, prompt(), with(of_window, options), Draft::automatic);
    ::test::expect_equal(got, want);
    EXPECT_GT(got.result.model_drafted, 0) << window;
  }
}

TEST_F(DraftedByModel, EndsWhereItWouldEnd) {
  const ForcedDrafts forced(7);
  const auto all = drafts(1024);
  Session first(context());
  const GenerateResult whole = model().generate(first, prompt(), {.max_tokens = 60});
  for (std::int64_t tokens = 0; tokens <= 40; tokens += tokens < 9 ? 1 : 11) {
    Session alone(context());
    Session drafting(context());
    const GenerateOptions options{.max_tokens = tokens};
    ::test::expect_equal(
        ::test::ask(model(), drafting, prompt(), with(all, options), Draft::automatic),
        ::test::ask(model(), alone, prompt(), options, Draft::none));
  }
  for (std::int64_t capacity = 40; capacity <= 61; capacity += 7) {
    Session alone(context(), {.capacity = capacity});
    Session drafting(context(), {.capacity = capacity});
    const std::int64_t fits = capacity - 40 + 1;  // the last token is not fed
    GenerateOptions options{.max_tokens = fits + 1, .draft_model = all};
    EXPECT_THROW(model().generate(drafting, prompt(), options), InvalidArgument);
    EXPECT_EQ(drafting.own_tokens(), 0);
    options.max_tokens = fits;
    EXPECT_EQ(model().generate(drafting, prompt(), options).tokens,
              model().generate(alone, prompt(), {.max_tokens = fits, .draft = Draft::none}).tokens);
  }
  std::int64_t stopped = 0;
  for (std::size_t i = 0; i + 1 < whole.tokens.size(); i += 14) {
    const std::vector<Token> two = {whole.tokens[i], whole.tokens[i + 1]};
    const GenerateOptions options{.max_tokens = 60, .stop = {model().tokenizer().decode(two)}};
    if (options.stop[0].empty() || options.stop[0].find("\xef\xbf\xbd") != std::string::npos)
      continue;
    Session alone(context());
    Session drafting(context());
    const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none, true);
    ::test::expect_equal(
        ::test::ask(model(), drafting, prompt(), with(all, options), Draft::automatic, true), want);
    stopped += want.result.finish == Finish::stop_text ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

// An end token within a draft ends the answer there.
TEST(DraftModel, EndsAtAnEndToken) {
  const ForcedDrafts forced(12);
  const std::filesystem::path from(TOPKV_SOURCE_DIR "/tests/fixtures/parity/llama3");
  const auto tokens = repeating_text(60, 2);
  const RetrievalOptions dense{.window = 4096};
  const auto answer = [&](const std::shared_ptr<const Model>& model, bool drafts,
                          GenerateOptions options) {
    Session session(model->prefill(tokens, {.kv_dtype = DType::f32}), dense);
    if (drafts) {
      options.draft_model =
          std::make_shared<const DraftModel>(model, *model, DraftModelOptions{.rows = DType::f32});
    }
    return ::test::ask(*model, session, std::span(tokens).first(20), options,
                       drafts ? Draft::automatic : Draft::none);
  };
  const GenerateOptions options{
      .max_tokens = 40, .sampling = {.temperature = 0.2, .seed = 5}, .logprobs = 0};
  const auto whole = answer(loaded("llama3"), false, options).result.tokens;
  ASSERT_EQ(whole.size(), 40U);
  std::int64_t ended = 0;
  for (const std::size_t at : {3, 7, 11, 20, 29}) {
    const TempDirectory folder;
    for (const auto& file : std::filesystem::directory_iterator(from)) {
      if (file.is_regular_file())
        std::filesystem::copy_file(file.path(), folder.path() / file.path().filename());
    }
    std::ofstream(folder.path() / "generation_config.json")
        << "{\"eos_token_id\": " << whole[at] << "}";
    const auto model = std::make_shared<const Model>(Model::load(folder.path()));
    const Asked want = answer(model, false, options);
    const Asked got = answer(model, true, options);
    ::test::expect_equal(got, want);
    EXPECT_EQ(want.result.finish, Finish::end_token);
    EXPECT_EQ(got.result.end_logprobs->chosen.logprob, want.result.end_logprobs->chosen.logprob);
    ended += got.result.accepted > 0 ? 1 : 0;
  }
  EXPECT_GT(ended, 1);
}

// Truncated sessions, forks, and sessions that others fed.
TEST_F(DraftedByModel, FollowsItsSession) {
  const ForcedDrafts forced(4);
  const auto some = drafts(256);
  const GenerateOptions options{.max_tokens = 30};
  Session alone(context(), dense());
  Session drafting(context(), dense());
  std::int64_t times = 0;
  const auto both = [&](Session& plain, Session& drafted, std::span<const Token> asked,
                        GenerateOptions how) {
    const Asked want = ::test::ask(model(), plain, asked, how, Draft::none);
    const Asked got = ::test::ask(model(), drafted, asked, with(some, how), Draft::automatic);
    ::test::expect_equal(got, want);
    times += got.result.model_drafted > 0 ? 1 : 0;
  };
  both(alone, drafting, prompt(), options);
  for (const std::int64_t kept : {60, 41, 3, 0}) {
    alone.truncate(kept);
    drafting.truncate(kept);
    both(alone, drafting, prompt().subspan(7), options);
  }
  Session fork = drafting.fork();
  Session plain = alone.fork();
  EXPECT_EQ(fork.stats().draft_bytes, 0);
  both(plain, fork, prompt().first(5),
       {.max_tokens = 20, .sampling = {.temperature = 1, .seed = 3}});
  both(alone, drafting, prompt().last(9), options);
  EXPECT_GT(fork.stats().draft_bytes, 0);
  // Tokens that nobody named.
  for (Session* const one : {&alone, &drafting}) model().logits(*one, prompt());
  both(alone, drafting, prompt().first(20), options);
  EXPECT_GE(times, 5) << "of 8";
  // Another draft model takes the place of the first.
  const auto other = drafts(128);
  const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
  ::test::expect_equal(
      ::test::ask(model(), drafting, prompt(), with(other, options), Draft::automatic), want);
  EXPECT_EQ(drafting.stats().draft_bytes, other->session_bytes());
}

// A draft model that is gone leaves the session as it is.
TEST_F(DraftedByModel, MayEndBeforeItsSession) {
  const ForcedDrafts forced(4);
  Session alone(context(), dense());
  Session drafting(context(), dense());
  for (int i = 0; i < 2; ++i) {
    const GenerateOptions options{.max_tokens = 12};
    const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
    ::test::expect_equal(
        ::test::ask(model(), drafting, prompt(), with(drafts(128), options), Draft::automatic),
        want);
  }
}

TEST_F(DraftedByModel, DraftsInABatchThatIsAlone) {
  const ForcedDrafts forced(4);
  const GenerateOptions options{.max_tokens = 50};
  Session alone(context(), dense());
  const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
  Session one(context(), dense());
  Session other(context(), dense());
  GenerationBatch batch(model());
  batch.add(one, prompt(), with(drafts(256), options));
  batch.add(other, prompt(), {.max_tokens = 5});
  while (batch.size() > 0) {
    for (const auto& done : batch.step()) {
      ASSERT_FALSE(done.error);
      if (done.id != 0) continue;
      EXPECT_EQ(done.result.tokens, want.result.tokens);
      EXPECT_GT(done.result.model_accepted, 0);
    }
  }
  EXPECT_EQ(one.own_tokens(), want.own);
}

// Whatever fails, of the draft model too, leaves the session as it was.
TEST(DraftModel, FailuresLeaveTheSession) {
  const ForcedDrafts forced(3);
  const auto model = loaded("llama3");
  const auto small = loaded("qwen3-5");
  const auto tokens = repeating_text(60, 2);
  const auto context = model->prefill(tokens, {.kv_dtype = DType::f32});
  const std::span<const Token> prompt = std::span(tokens).first(20);
  const auto drafts =
      std::make_shared<const DraftModel>(small, *model, DraftModelOptions{.window = 64});
  const GenerateOptions options{
      .max_tokens = 4, .sampling = {.temperature = 2, .seed = 1}, .draft_model = drafts};
  Session plain(context);
  GenerateOptions without = options;
  without.draft = Draft::none;
  const std::vector<Token> wanted = model->generate(plain, prompt, without).tokens;
  std::int64_t of_steps = 0;
  const std::int64_t places = ::test::fail_everywhere([&](std::int64_t) {
    Session session(context);
    std::int64_t told = 0;
    try {
      const auto result = model->generate(session, prompt, options, [&](Token) {
        ++told;
        return true;
      });
      EXPECT_EQ(result.tokens, wanted);
      EXPECT_GT(result.model_drafted, 0);
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(session.own_tokens(), 0);
      of_steps += told > 0 ? 1 : 0;
    }
    const auto hook = fault_hook.exchange(nullptr);
    session.truncate(0);
    EXPECT_EQ(model->generate(session, prompt, options).tokens, wanted);
    fault_hook = hook;
  });
  EXPECT_GT(places, 20);
  EXPECT_GT(of_steps, 10);
}

template <class Run>
void expect_refused(const Run& run, const std::string& says) {
  try {
    run();
    ADD_FAILURE() << "not refused: " << says;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

/// A copy of the bundled model with another tokenizer.json.
std::shared_ptr<const Model> with_tokenizer(const std::filesystem::path& folder,
                                            const std::function<void(std::string&)>& change) {
  const std::filesystem::path from(TOPKV_SOURCE_DIR "/models/needle-14m");
  for (const auto& file : std::filesystem::directory_iterator(from)) {
    if (file.is_regular_file())
      std::filesystem::copy_file(file.path(), folder / file.path().filename());
  }
  std::stringstream text;
  text << std::ifstream(folder / "tokenizer.json").rdbuf();
  std::string json = text.str();
  change(json);
  std::ofstream(folder / "tokenizer.json") << json;
  return std::make_shared<const Model>(Model::load(folder));
}

TEST_F(DraftedByModel, NeedsTheSameVocabulary) {
  const auto open = [](const std::shared_ptr<const Model>& draft, const Model& of) {
    return [draft, &of] { DraftModel(draft, of); };
  };
  const auto llama = loaded("llama3");
  expect_refused(open(nullptr, model()), "the draft model is null");
  expect_refused(open(llama, model()), "the draft model has no tokenizer");
  expect_refused(open(shared_model(), *llama), "the model has no tokenizer");
  const TempDirectory folder;
  const auto other = with_tokenizer(folder.path(), [](std::string& json) {
    // Two tokens change places.
    const Tokenizer& tokenizer = model().tokenizer();
    const std::string a = "\"" + tokenizer.content_of_token(300) + "\":";
    const std::string b = "\"" + tokenizer.content_of_token(301) + "\":";
    const auto first = json.find(a);
    ASSERT_NE(first, std::string::npos);
    json.replace(first, a.size(), "\"?placeholder?\":");
    const auto second = json.find(b);
    ASSERT_NE(second, std::string::npos);
    json.replace(second, b.size(), a);
    json.replace(json.find("\"?placeholder?\":"), 16, b);
  });
  expect_refused(open(other, model()), "token 300 is \"");
  expect_refused(open(other, model()), "expected the same vocabulary");
}

TEST_F(DraftedByModel, RefusesWhatItCannotDo) {
  const auto qwen = loaded("qwen2-chunks");
  const auto llama = loaded("llama3");
  expect_refused([&] { DraftModel(llama, *loaded("qwen3-5"), {.window = 31}); },
                 "a draft model's window of 31 tokens; expected from 32 to 16,777,216");
  expect_refused([&] { DraftModel(llama, *llama, {.window = (std::int64_t{1} << 24) + 1}); },
                 "expected from 32 to 16,777,216");
  // A window beyond the model's reach is the reach.
  const DraftModel far(llama, *llama, {.window = 100000});
  EXPECT_EQ(far.window(), std::min<std::int64_t>(100000, llama->config().reach()));
  const auto for_qwen = std::make_shared<const DraftModel>(llama, *qwen);
  const auto tokens = repeating_text(50, 1);
  Session session(qwen->prefill(tokens));
  expect_refused([&] { qwen->generate(session, tokens, {.draft_model = for_qwen}); },
                 "dual chunk attention");
  Session of_llama(llama->prefill(tokens));
  expect_refused([&] { llama->generate(of_llama, tokens, {.draft_model = for_qwen}); },
                 "opened for another model");
}

}  // namespace
}  // namespace topkv
