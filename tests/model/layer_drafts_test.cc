// Drafts of a model's own layer: answers are the answers without them, and sessions are as they
// would be.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/draft_layers.h"
#include "tests/support/drafts.h"
#include "tests/support/failing.h"
#include "topkv/draft_model.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using ::test::Asked;
using ::test::ForcedDrafts;
using ::test::make_layer_good;
using ::test::repeating_text;
using ::test::varied_options;
using ::test::write_with_draft_layer;

/// The checkpoint of this name, with a draft layer. halvings: of make_layer_good; below 0: random.
std::shared_ptr<const Model> loaded(const std::string& name, int halvings = -1,
                                    const LoadOptions& options = {}) {
  const TempDirectory folder;
  write_with_draft_layer(folder.path(), name, [&](FileTensors& tensors) {
    if (halvings >= 0) make_layer_good(tensors, halvings);
  });
  return std::make_shared<const Model>(Model::load(
      folder.path(), {},
      [](const std::string& warning) {
        EXPECT_EQ(warning.find("not used"), std::string::npos) << warning;
      },
      options));
}

struct Case {
  const char* model;
  int halvings;  // -1: a layer of random weights, whose drafts are mostly rejected
};

class LayerDrafts : public testing::TestWithParam<Case> {};

TEST_P(LayerDrafts, ChangeNoAnswer) {
  const auto model = loaded(GetParam().model, GetParam().halvings);
  ASSERT_GT(model->draft_layer_bytes(), 0);
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
      const Asked got = ::test::ask(*model, drafting, turn, options, Draft::automatic);
      ::test::expect_equal(got, want);
      accepted += got.result.model_accepted;
      rejected += got.result.model_drafted - got.result.model_accepted;
    }
    EXPECT_EQ(alone.stats().draft_bytes, 0);
    EXPECT_EQ(drafting.stats().draft_bytes, model->draft_layer_bytes());
  }
  if (GetParam().halvings != 0) {
    EXPECT_GT(rejected, 50);
  }
  if (GetParam().halvings >= 0) {
    EXPECT_GT(accepted, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerDrafts,
                         testing::Values(Case{"qwen3-5", -1}, Case{"qwen3-5", 0},
                                         Case{"qwen3-5", 3}, Case{"qwen3-5-moe", -1},
                                         Case{"qwen3-next", -1}, Case{"deepseek-v3", -1},
                                         Case{"glm4-moe-lite", -1}),
                         [](const auto& info) {
                           std::string name = info.param.model;
                           if (info.param.halvings >= 0)
                             name += "_halved_" + std::to_string(info.param.halvings);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// A model whose layer is right, but for some tokens.
class DraftedByLayer : public testing::Test {
 protected:
  static const Model& model() {
    static const std::shared_ptr<const Model> model = loaded("qwen3-5", 3);
    return *model;
  }
  static const std::vector<Token>& text() {
    static const std::vector<Token> text = repeating_text(300, 7);
    return text;
  }
  static std::shared_ptr<const Context> context() {
    static const auto context =
        model().prefill(std::span(text()).first(40), {.kv_dtype = DType::f32});
    return context;
  }
  static std::span<const Token> prompt() { return std::span(text()).subspan(40, 30); }
  /// Sampled, so that the text does not repeat itself.
  static GenerateOptions sampled(std::int64_t tokens, std::uint64_t seed) {
    return {.max_tokens = tokens, .sampling = {.temperature = 0.6, .seed = seed}};
  }
};

// A layer that is always right: all of its tokens are chosen.
TEST(LayerDraft, AcceptsAllOfALayerThatIsRight) {
  const auto model = loaded("qwen3-5", 0);
  std::int64_t drafted = 0;
  for (Token token = 3; token < 90; token += 4) {
    for (const std::int64_t length : {1, 4, 15}) {
      const ForcedDrafts forced(length);
      Session session(model->prefill(std::vector<Token>{token}));
      const std::vector<Token> asked = {static_cast<Token>(token + 1),
                                        static_cast<Token>(token + 2)};
      const GenerateResult got = model->generate(session, asked, {.max_tokens = 40});
      EXPECT_EQ(got.accepted, got.drafted) << token;
      drafted += got.model_drafted;
    }
  }
  EXPECT_GT(drafted, 300);
}

// The layer drafts while it is worth its time, and only then. Times decide, so nothing is counted.
TEST_F(DraftedByLayer, AdaptsWithoutBeingForced) {
  Session alone(context());
  Session drafting(context());
  const GenerateOptions options = sampled(120, 2);
  const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
  ::test::expect_equal(::test::ask(model(), drafting, prompt(), options, Draft::automatic), want);
}

// Truncated sessions, forks, sessions that others fed, and prompts in several pieces.
TEST_F(DraftedByLayer, FollowsItsSession) {
  const ForcedDrafts forced(4);
  Session alone(context());
  Session drafting(context());
  std::int64_t times = 0;
  const auto both = [&](Session& plain, Session& drafted, std::span<const Token> asked,
                        const GenerateOptions& options) {
    const Asked want = ::test::ask(model(), plain, asked, options, Draft::none);
    const Asked got = ::test::ask(model(), drafted, asked, options, Draft::automatic);
    ::test::expect_equal(got, want);
    times += got.result.model_drafted > 0 ? 1 : 0;
  };
  both(alone, drafting, prompt(), sampled(40, 1));
  Session fork = drafting.fork();
  Session plain = alone.fork();
  EXPECT_EQ(fork.stats().draft_bytes, 0);
  both(plain, fork, prompt().first(5), sampled(20, 3));
  both(alone, drafting, prompt().last(9), sampled(30, 4));
  EXPECT_EQ(fork.stats().draft_bytes, model().draft_layer_bytes());
  // Tokens that are not kept, for Model::logits feeds them.
  for (Session* const one : {&alone, &drafting}) model().logits(*one, prompt());
  both(alone, drafting, prompt().first(20), sampled(30, 5));
  // Answers without drafts leave a gap.
  for (Session* const one : {&alone, &drafting})
    ::test::ask(model(), *one, prompt().first(3), sampled(9, 6), Draft::none);
  both(alone, drafting, prompt().first(4), sampled(30, 7));
  for (Session* const one : {&alone, &drafting}) one->truncate(0);
  both(alone, drafting, std::span(text()).first(290), sampled(30, 8));
  EXPECT_EQ(times, 6);
}

TEST_F(DraftedByLayer, DraftsInABatchThatIsAlone) {
  const ForcedDrafts forced(4);
  const GenerateOptions options = sampled(60, 9);
  Session alone(context());
  const Asked want = ::test::ask(model(), alone, prompt(), options, Draft::none);
  Session one(context());
  Session other(context());
  GenerationBatch batch(model());
  batch.add(one, prompt(), options);
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

// A draft model takes the layer's place, and the layer takes it back.
TEST(LayerDraft, GivesWayToADraftModel) {
  const ForcedDrafts forced(4);
  const auto model = loaded("qwen3-5", 3);
  const auto drafts =
      std::make_shared<const DraftModel>(model, *model, DraftModelOptions{.window = 64});
  const auto all = repeating_text(80, 1);
  const auto context = model->prefill(std::span(all).first(40), {.kv_dtype = DType::f32});
  Session alone(context);
  Session drafting(context);
  for (const bool by_model : {false, true, false}) {
    GenerateOptions options{.max_tokens = 20, .sampling = {.temperature = 0.6, .seed = 4}};
    const auto prompt = std::span(all).last(20);
    const Asked want = ::test::ask(*model, alone, prompt, options, Draft::none);
    if (by_model) options.draft_model = drafts;
    const Asked got = ::test::ask(*model, drafting, prompt, options, Draft::automatic);
    ::test::expect_equal(got, want);
    EXPECT_GT(got.result.model_drafted, 0);
    EXPECT_EQ(drafting.stats().draft_bytes,
              by_model ? drafts->session_bytes() : model->draft_layer_bytes());
  }
}

// Whatever fails, of the layer too, leaves the session as it was.
TEST(LayerDraft, FailuresLeaveTheSession) {
  const ForcedDrafts forced(3);
  for (const char* const name : {"qwen3-5", "deepseek-v3"}) {
    const auto model = loaded(name);
    const auto tokens = repeating_text(60, 2);
    const auto context = model->prefill(tokens, {.kv_dtype = DType::f32});
    const std::span<const Token> prompt = std::span(tokens).first(20);
    const GenerateOptions options{.max_tokens = 4, .sampling = {.temperature = 2, .seed = 1}};
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
    EXPECT_GT(of_steps, 5);
  }
}

// The layer is rounded with the model.
TEST(LayerDraft, IsHeldAsTheModel) {
  const ForcedDrafts forced(3);
  const auto model = loaded("qwen3-5", 3, {.weights = WeightFormat::int8});
  const auto all = repeating_text(60, 5);
  const auto context = model->prefill(all, {.kv_dtype = DType::f32});
  Session alone(context);
  Session drafting(context);
  const GenerateOptions options{.max_tokens = 40, .sampling = {.temperature = 0.6, .seed = 4}};
  const Asked want = ::test::ask(*model, alone, all, options, Draft::none);
  const Asked got = ::test::ask(*model, drafting, all, options, Draft::automatic);
  ::test::expect_equal(got, want);
  EXPECT_GT(got.result.model_accepted, 0);
}

// Tensors that are missing or of another shape are an error; experts in another form are ignored,
// as are layers of families that have none.
TEST(LayerDraft, IsLoadedWhereItIsKnown) {
  const auto load = [](const char* name, const std::function<void(FileTensors&)>& change) {
    const TempDirectory folder;
    write_with_draft_layer(folder.path(), name, change);
    return Model::load(folder.path());
  };
  const auto missing = [&](const char* name, const std::string& tensor) {
    expect_error<FileError>([&] { load(name, [&](FileTensors& all) { all.erase(tensor); }); }, "",
                            {tensor});
  };
  missing("qwen3-5", "mtp.pre_fc_norm_hidden.weight");
  missing("qwen3-5", "mtp.layers.0.self_attn.q_norm.weight");
  missing("deepseek-v3", "model.layers.3.hnorm.weight");
  missing("deepseek-v3", "model.layers.3.mlp.experts.7.down_proj.weight");
  EXPECT_EQ(
      load("qwen3-5", [](FileTensors& all) { all.erase("mtp.fc.weight"); }).draft_layer_bytes(), 0);
  EXPECT_EQ(load("qwen3-next",
                 [](FileTensors& all) {
                   std::erase_if(all, [](const auto& one) {
                     return one.first.starts_with("mtp.layers.0.mlp.experts.");
                   });
                 })
                .draft_layer_bytes(),
            0);
  EXPECT_EQ(Model::load(::test::fixtures("parity") / "qwen3-5").draft_layer_bytes(), 0);
}

TEST(LayerDraft, NamesAWeightThatIsNotFinite) {
  const TempDirectory folder;
  const std::string name = "mtp.layers.0.mlp.down_proj.weight";
  write_with_draft_layer(folder.path(), "qwen3-5",
                         [&](FileTensors& all) { std::ranges::fill(all[name].bytes, '\xff'); });
  const Model model = Model::load(folder.path());
  const ForcedDrafts forced(2);
  const auto tokens = repeating_text(20, 1);
  Session session(model.prefill(tokens));
  const GenerateOptions options{.max_tokens = 30, .sampling = {.temperature = 2, .seed = 1}};
  expect_error<FileError>([&] { model.generate(session, tokens, options); }, "", {name});
  EXPECT_EQ(session.own_tokens(), 0);
  EXPECT_EQ(session.stats().draft_bytes, 0);
}

}  // namespace
}  // namespace topkv
