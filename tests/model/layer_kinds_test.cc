// Models whose layers differ in heads, rows, MLPs and inputs (Gemma 4): contexts, files, forks and
// batches of them give what one pass over the text gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/generation.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// The parameter is a fixture of parity_test.cc.
class LayerKinds : public testing::TestWithParam<std::string> {
 protected:
  static std::filesystem::path fixture() {
    return std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / GetParam();
  }
  static const Model& model() {
    static std::map<std::string, Model> models;
    const auto found = models.find(GetParam());
    if (found != models.end()) return found->second;
    return models.emplace(GetParam(), Model::load(fixture())).first->second;
  }
  static std::vector<Token> text(std::int64_t tokens) {
    std::vector<Token> all;
    for (std::int64_t i = 0; i < tokens; ++i)
      all.push_back(static_cast<Token>(3 + (i * i * 3 + i / 7) % 94));
    return all;
  }
  static std::shared_ptr<const Context> read(std::int64_t tokens, std::int64_t chunk,
                                             KvDType dtype = DType::f32,
                                             PrefillAttention attention = {}) {
    return model().prefill(text(tokens),
                           {.attention = attention, .chunk = chunk, .kv_dtype = dtype});
  }
  static RetrievalOptions options(std::int64_t k = 1 << 20) {
    return {.k = TopK::same(k), .window = 16, .capacity = 2000};
  }
  /// Logits of tokens [first, end) of the text after a session that holds those before.
  static std::vector<float> next(Session& session, std::int64_t first, std::int64_t end) {
    const auto all = text(end);
    return model().logits(session, std::span(all).subspan(static_cast<std::size_t>(first)));
  }
  static double distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    double off = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(double{b[i]}));
      off = std::max(off, std::abs(double{a[i]} - b[i]));
    }
    EXPECT_GT(largest, 0);
    return off / largest;
  }
};

TEST_P(LayerKinds, PrefillsInPiecesAndSessionsGiveWhatOnePassGives) {
  constexpr std::int64_t tokens = 2120;  // more than MLPs take at once
  const auto all = text(tokens);
  auto want = model().logits(all);
  want.erase(want.begin(), want.end() - 20 * model().config().vocab_size);
  for (const std::int64_t chunk : {7, 1000, 2100}) {
    Session session(read(2100, chunk), options());
    EXPECT_LE(distance(next(session, 2100, tokens), want), 1e-4) << chunk;
    session.truncate(5);
    std::vector<float> one_by_one;
    for (std::int64_t t = 2105; t < tokens; ++t) {
      const auto logits = next(session, t, t + 1);
      one_by_one.insert(one_by_one.end(), logits.begin(), logits.end());
    }
    EXPECT_LE(distance(one_by_one, {want.begin() + 5 * model().config().vocab_size, want.end()}),
              1e-4);
  }
}

TEST_P(LayerKinds, FilesAndForksGoOnAlike) {
  const TempDirectory temp;
  for (const KvDType dtype : {KvDType{}, KvDType{DType::q8, DType::q4}}) {
    const auto context = read(150, 64, dtype);
    EXPECT_EQ(context->memory().rows_bytes, context->shape().context_bytes(dtype, 150));
    save_context(*context, temp.path() / "context");
    Session one(context, options());
    Session other(load_context(temp.path() / "context", {.mapped = true}).context, options());
    EXPECT_EQ(next(one, 150, 160), next(other, 150, 160));
    Session fork = one.fork();
    const auto expected = next(one, 160, 190);
    EXPECT_EQ(next(fork, 160, 190), expected);
    save_context(*fork.own_rows(), temp.path() / "turns");
    other.truncate(0);
    other.resume(*load_context(temp.path() / "turns", {}).context);
    EXPECT_EQ(next(other, 190, 191), next(fork, 190, 191));
  }
}

TEST_P(LayerKinds, TheDefaultIndexAndTailFindMostOfTheAttention) {
  constexpr std::int64_t tokens = 3000;
  const std::string index = IndexSpec::default_for(model().config().attention.head_dim).text();
  const auto context = model().prefill(text(tokens), {.indices = {index}});
  RetrievalOptions few = options(64);
  few.index = index;
  RetrievalOptions none = few;
  none.k = TopK::same(1);
  none.tail = "none";
  const auto logits = [&](const RetrievalOptions& with) {
    Session session(context, with);
    return next(session, tokens, tokens + 8);
  };
  const auto dense = logits(options());
  const double off = distance(logits(few), dense);
  const double without = distance(logits(none), dense);
  EXPECT_LT(off, 0.5 * without) << off << " " << without;
  const auto window = read(tokens, 0, {}, {.mode = Prefill::window, .window = 256, .sinks = 4});
  RetrievalOptions exact = few;
  exact.index = "exact";
  Session session(window, exact);
  EXPECT_TRUE(std::ranges::all_of(next(session, tokens, tokens + 3),
                                  [](float x) { return std::isfinite(x); }));
}

TEST_P(LayerKinds, SessionsThatAreSteppedTogetherAnswerAsEachAlone) {
  const auto context = read(120, 0);
  GenerationBatch batch(model());
  std::vector<Session> alone;
  std::vector<std::vector<Token>> want;
  std::vector<Session> together;
  std::vector<GenerationBatch::Id> ids;
  for (std::int64_t i = 0; i < 3; ++i) {
    alone.emplace_back(context, options());
    together.emplace_back(context, options());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto prompt = text(5 + static_cast<std::int64_t>(i) * 4);
    want.push_back(model().generate(alone[i], prompt, {.max_tokens = 10}).tokens);
    ids.push_back(batch.add(together[i], prompt, {.max_tokens = 10}));
  }
  std::map<GenerationBatch::Id, std::vector<Token>> got;
  while (got.size() < 3) {
    for (const GenerationBatch::Finished& one : batch.step()) got[one.id] = one.result.tokens;
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(got[ids[i]], want[i]) << i;
}

TEST_P(LayerKinds, WeightsInEightBitsAreCloseToThoseStored) {
  const Model rounded = Model::load(fixture(), {}, {}, {.weights = WeightFormat::int8});
  EXPECT_LT(distance(rounded.logits(text(60)), model().logits(text(60))), 0.5);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LayerKinds,
                         testing::Values("gemma4", "gemma4-shared", "gemma4-moe"));

}  // namespace
}  // namespace topkv
