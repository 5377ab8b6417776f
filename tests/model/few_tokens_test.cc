// On the host, steps of a few tokens give each token what steps of one token give, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/bundled_model.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

const auto fixtures = std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::vector<Token> some_text(std::int64_t tokens) {
  std::vector<Token> all;
  for (std::int64_t i = 0; i < tokens; ++i)
    all.push_back(static_cast<Token>(3 + (i * i * 3 + i / 7) % 90));
  return all;
}

/// Logits of tokens that are fed to a session in steps of so many.
std::vector<float> logits_in_steps(const Model& model, Session& session,
                                   std::span<const Token> tokens,
                                   std::span<const std::size_t> steps) {
  std::vector<float> all;
  std::size_t step = 0;
  for (std::size_t at = 0; at < tokens.size();) {
    const std::size_t count = std::min(tokens.size() - at, steps[step++ % steps.size()]);
    const auto logits = model.logits(session, tokens.subspan(at, count));
    all.insert(all.end(), logits.begin(), logits.end());
    at += count;
  }
  return all;
}

void expect_alike(const Model& model, const std::shared_ptr<const Context>& context,
                  const RetrievalOptions& options, std::span<const Token> tokens) {
  const std::size_t one[] = {1};
  const std::size_t few[] = {2, 16, 3, 7, 4, 13};
  Session alone(context, options);
  Session together(context, options);
  const auto expected = logits_in_steps(model, alone, tokens, one);
  const auto got = logits_in_steps(model, together, tokens, few);
  const auto [at, other] = std::ranges::mismatch(got, expected);
  const auto vocabulary = model.config().vocab_size;
  if (at != got.end())
    ADD_FAILURE() << "token " << (at - got.begin()) / vocabulary << ": " << *at << " " << *other;
}

class FewTokens : public testing::TestWithParam<std::string> {};

TEST_P(FewTokens, AreStepsOfOne) {
  auto path = fixtures / GetParam();
  if (std::filesystem::exists(path / "model.gguf")) path /= "model.gguf";
  if (!std::filesystem::exists(path / "config.json") && path.extension() != ".gguf") GTEST_SKIP();
  const Model model = Model::load(path);
  if (model.config().dual_chunk.chunk_size > 0) GTEST_SKIP();
  const auto text = some_text(150);
  const auto all = std::span<const Token>(text);
  const auto context = model.prefill(all.first(80), {.kv_dtype = DType::f32});
  expect_alike(model, context, {.k = TopK::same(6), .window = 12, .sinks = 2}, all.subspan(80));
  expect_alike(model, context, {.k = TopK::same(6), .window = 1024, .sinks = 2}, all.subspan(80));
}

INSTANTIATE_TEST_SUITE_P(Families, FewTokens, testing::ValuesIn(fixture_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

class FewTokensOf : public testing::TestWithParam<RetrievalOptions> {};

TEST_P(FewTokensOf, AreStepsOfOne) {
  const Model model = ::test::bundled(Device());
  const std::vector<Token> text = ::test::text_with_fact(model, 700);
  const auto all = std::span<const Token>(text);
  const RetrievalOptions options = GetParam();
  const auto context = model.prefill(all.first(600), {.keep_queries = true})->ready_for(options);
  expect_alike(model, context, options, all.subspan(600));
}

// Without rules and squeezed, for which steps of several tokens differ.
std::vector<RetrievalOptions> ways() {
  std::vector<RetrievalOptions> all;
  for (const char* index : {"exact", "none", "codes:k=16,v=8", "codes:k=16", "quest", "sparq",
                            "retroinfer", "hnsw", "ivf"}) {
    const RetrievalOptions one{.index = index, .k = TopK::same(16), .window = 24};
    all.push_back(one);
    all.push_back(one);
    all.back().select_by = SelectBy::group;
    all.back().dense_layers = 2;
    all.push_back(one);
    all.back().tail = "codes:k=16,v=8";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ways, FewTokensOf, testing::ValuesIn(ways()), [](const auto& info) {
  std::string name = info.param.index + "_" + std::to_string(info.index % 3);
  std::erase_if(name,
                [](char c) { return !std::isalnum(static_cast<unsigned char>(c)) && c != '_'; });
  return name;
});

}  // namespace
}  // namespace topkv
