// The model runner against transformers: logits and greedy tokens of small checkpoints of every
// family, made by tools/make_parity_fixtures.py. See there for what each variant exercises and how
// far a mistake would move its logits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "src/model/weights/safetensors.h"
#include "topkv/model.h"

namespace topkv {
namespace {

// Both sides do float32 arithmetic over the same weights, in another order. transformers' float32
// logits of these fixtures are within 4e-6 of float64 ones, relative to the largest logit; the
// runner may be off by five times that. Any mistake that make_parity_fixtures.py tries moves the
// logits by 1e-2 at the least.
constexpr double tolerance = 2e-5;

struct Variant {
  std::string name;
  std::filesystem::path checkpoint;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::string name_of_case(const testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name;
}

nlohmann::json description(const std::string& name) {
  std::ifstream file(fixture(name) / "tokens.json");
  return nlohmann::json::parse(file);
}

class Parity : public testing::TestWithParam<Variant> {
 protected:
  Parity()
      : folder_(fixture(GetParam().name)),
        json_(description(GetParam().name)),
        model_(Model::load(GetParam().checkpoint, {},
                           [](const std::string& warning) {
                             // Everything in these files has its place in the network.
                             EXPECT_EQ(warning.find("not used"), std::string::npos) << warning;
                           },
                           {.length = json_.value("length", 0)})),
        tokens_(json_.at("tokens").get<std::vector<Token>>()),
        greedy_(json_.at("greedy").get<std::vector<Token>>()) {}

  /// transformers' logits of the last tokens, [rows, vocab].
  std::vector<float> reference(std::int64_t rows, const char* name = "logits") const {
    const auto tensors = SafeTensors::open(folder_ / "reference");
    const auto logits =
        tensors.get(name, std::vector<std::int64_t>{rows, model_.config().vocab_size});
    std::vector<float> values(static_cast<std::size_t>(rows * model_.config().vocab_size));
    to_float(logits.data, logits.dtype, static_cast<std::int64_t>(values.size()), values.data());
    return values;
  }

  std::filesystem::path folder_;
  nlohmann::json json_;
  Model model_;
  std::vector<Token> tokens_, greedy_;
};

/// got: logits of all tokens; expected: those of the last ones.
void expect_close(const std::vector<float>& got, const std::vector<float>& expected,
                  std::int64_t vocab) {
  ASSERT_GE(got.size(), expected.size());
  const std::size_t skipped = got.size() - expected.size();
  double largest = 0, worst = -1;
  std::size_t worst_at = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    const double difference = std::abs(static_cast<double>(got[skipped + i]) - expected[i]);
    if (!(difference <= worst)) {  // NaN counts as worst
      worst = difference;
      worst_at = i;
      if (std::isnan(difference)) break;
    }
  }
  ASSERT_GT(largest, 0);
  const auto row = (skipped + worst_at) / static_cast<std::size_t>(vocab);
  const auto token = (skipped + worst_at) % static_cast<std::size_t>(vocab);
  testing::Test::RecordProperty("worst_relative_to_largest",
                                fmt::format("{:.1e}", worst / largest));
  EXPECT_LE(worst, tolerance * largest)
      << "worst logit: position " << row << ", token " << token << ": " << got[skipped + worst_at]
      << ", transformers has " << expected[worst_at] << "; off by " << worst / largest
      << " of the largest logit " << largest;
}

TEST_P(Parity, LogitsAreThoseOfTransformers) {
  const std::int64_t vocab = model_.config().vocab_size;
  const bool bundled = GetParam().name == "needle-14m";  // its reference is 8 rows, to stay small
  const auto rows = bundled ? 8 : static_cast<std::int64_t>(tokens_.size());
  expect_close(model_.logits(tokens_), reference(rows), vocab);
}

TEST_P(Parity, LogitsThroughASessionThatRetrievesEveryRowAreTheSame) {
  // The first part is context, the rest is read by a session whose window is too small for it, so
  // that rows come from the sinks, the index and the window.
  const auto split = static_cast<std::ptrdiff_t>(tokens_.size() - 8);
  const std::vector<Token> first(tokens_.begin(), tokens_.begin() + split);
  const std::vector<Token> rest(tokens_.begin() + split, tokens_.end());
  const auto context = model_.prefill(first, {.chunk = 24, .kv_dtype = DType::f32});
  Session session(context, {.k = TopK::same(1 << 20), .window = 6, .sinks = 2});
  const auto got = model_.logits(session, rest);

  const std::int64_t vocab = model_.config().vocab_size;
  const bool bundled = GetParam().name == "needle-14m";
  if (json_.value("session", false)) {
    expect_close(got, reference(8, "session"), vocab);
    return;
  }
  auto expected = reference(bundled ? 8 : static_cast<std::int64_t>(tokens_.size()));
  expected.erase(expected.begin(), expected.end() - 8 * vocab);
  expect_close(got, expected, vocab);
}

TEST_P(Parity, GreedyContinuationIsThatOfTransformers) {
  const std::vector<Token> all_but_last(tokens_.begin(), tokens_.end() - 1);
  const auto context = model_.prefill(all_but_last, {.kv_dtype = DType::f32});
  Session session(context, {.window = 4096});
  const auto result = model_.generate(session, std::vector<Token>{tokens_.back()},
                                      {.max_tokens = static_cast<std::int64_t>(greedy_.size())});
  EXPECT_EQ(result.tokens, greedy_);
}

/// Every folder of fixtures: its own checkpoint, another one's, or the bundled model.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const auto& entry : std::filesystem::directory_iterator(fixture(""))) {
    const std::string name = entry.path().filename().string();
    const std::filesystem::path bundled = std::filesystem::path(TOPKV_SOURCE_DIR) / "models" / name;
    const auto of = description(name).value("checkpoint", name);
    const std::filesystem::path gguf = fixture(name) / "model.gguf";
    all.push_back({name, name == "needle-14m"            ? bundled
                         : std::filesystem::exists(gguf) ? gguf
                                                         : fixture(of)});
  }
  std::ranges::sort(all, {}, &Variant::name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Parity, testing::ValuesIn(variants()), name_of_case);

}  // namespace
}  // namespace topkv
