// `topkv bench`: generated rows, what is measured over them, and what is printed.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "src/cli/bench/bench_report.h"
#include "src/cli/bench/bench_rows.h"
#include "src/cli/bench/bench_run.h"
#include "src/cli/flags/bench_shape.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/math/convert.h"

namespace topkv::cli {
namespace {

const AttentionShape small{3, 4, 2, 20};  // a head dim that is no multiple of 8

using Bytes = std::vector<std::byte>;

struct Rows {
  Bytes keys, values;
  bool operator==(const Rows&) const = default;
};

Rows rows_of(const BenchLayer& layer, std::int64_t begin, std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(small.kv_heads * count * small.head_dim * 2);
  Rows rows{Bytes(bytes), Bytes(bytes)};
  layer.fill(begin, count, rows.keys.data(), rows.values.data());
  return rows;
}

std::shared_ptr<const Context> context_of(const AttentionShape& shape, std::int64_t tokens,
                                          std::uint64_t seed) {
  ContextBuilder builder(shape, {.capacity = tokens});
  append_rows(builder, bench_layers(shape, seed), tokens, {});
  return builder.freeze();
}

BenchOptions small_plan() {
  BenchOptions plan;
  plan.name = "small";
  plan.shape = small;
  plan.all_layers = 5;
  plan.context = 3000;
  plan.tokens = 10;
  plan.after = 4;
  plan.chunk = 700;
  plan.seed = 9;
  RetrievalOptions options;
  options.window = 64;
  options.capacity = plan.after + plan.tokens;
  for (const std::int64_t k : {8, 32}) {
    options.k = TopK::same(k);
    plan.rows.push_back(options);
    plan.sessions.push_back(1);
    plan.ks.push_back(std::to_string(k));
  }
  plan.attention = {{Prefill::dense, 256}, {Prefill::window, 256}};
  return plan;
}

// Progress that nobody sees.
struct Silent {
  std::FILE* file = std::fopen("/dev/null", "w");
  ProgressBar bar{file, false};
  ~Silent() {
    bar.finish();
    std::fclose(file);
  }
};

TEST(BenchRows, AreTheSameWhateverTheNumberOfThreads) {
  const BenchLayer layer(small, 1, 5);
  const Rows many = rows_of(layer, 0, 9000);
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  EXPECT_EQ(rows_of(BenchLayer(small, 1, 5), 0, 9000), many);
}

TEST(BenchRows, AreTheSameHoweverTheContextIsCut) {
  const BenchLayer layer(small, 2, 5);
  const Rows whole = rows_of(layer, 0, 5000);
  const Rows part = rows_of(layer, 1999, 1234);
  const std::int64_t row = small.head_dim * 2;
  for (std::int64_t head = 0; head < small.kv_heads; ++head) {
    const auto in_whole = (head * 5000 + 1999) * row;
    const auto in_part = head * 1234 * row;
    EXPECT_TRUE(std::equal(part.keys.begin() + in_part, part.keys.begin() + in_part + 1234 * row,
                           whole.keys.begin() + in_whole));
    EXPECT_TRUE(std::equal(part.values.begin() + in_part,
                           part.values.begin() + in_part + 1234 * row,
                           whole.values.begin() + in_whole));
  }
}

TEST(BenchRows, DifferBySeedLayerAndHead) {
  const Rows rows = rows_of(BenchLayer(small, 1, 5), 0, 100);
  EXPECT_NE(rows_of(BenchLayer(small, 1, 6), 0, 100), rows);
  EXPECT_NE(rows_of(BenchLayer(small, 2, 5), 0, 100), rows);
  const auto half = static_cast<std::ptrdiff_t>(rows.keys.size() / 2);
  EXPECT_FALSE(std::equal(rows.keys.begin(), rows.keys.begin() + half, rows.keys.begin() + half));
}

TEST(BenchRows, OfASessionAreThoseOfTheContext) {
  const BenchLayer layer(small, 1, 5);
  const Rows stored = rows_of(layer, 70, 3);
  const std::size_t count = static_cast<std::size_t>(3 * small.kv_heads * small.head_dim);
  std::vector<float> keys(count), values(count), widened(count);
  layer.fill_float(70, 3, keys.data(), values.data());
  to_float(stored.keys.data(), DType::bf16, static_cast<std::int64_t>(count), widened.data());
  for (std::int64_t token = 0; token < 3; ++token) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t j = 0; j < 20; ++j) {
        EXPECT_EQ(keys[static_cast<std::size_t>((token * 2 + head) * 20 + j)],
                  widened[static_cast<std::size_t>((head * 3 + token) * 20 + j)]);
      }
    }
  }
}

// 60,000 values: the mean of standard normal ones has deviation 0.004, their variance 0.006.
TEST(BenchRows, HaveStandardNormalValues) {
  const Rows rows = rows_of(BenchLayer(small, 1, 5), 0, 1500);
  std::vector<float> values(rows.values.size() / 2);
  to_float(rows.values.data(), DType::bf16, static_cast<std::int64_t>(values.size()),
           values.data());
  double sum = 0;
  double squares = 0;
  for (const double x : values) {
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.03);
}

TEST(BenchQueries, LookForAnotherTokenAtEachStep) {
  const BenchLayer layer(small, 1, 5);
  std::vector<float> a(80), again(80), b(80);
  layer.queries(3, 1000, a.data());
  layer.queries(3, 1000, again.data());
  layer.queries(4, 1000, b.data());
  EXPECT_EQ(a, again);
  EXPECT_NE(a, b);
}

class MassOfSeed : public testing::TestWithParam<std::uint64_t> {};

TEST_P(MassOfSeed, IsLeastInTheDiffuseLayerAndMostInTheFocusedOne) {
  const AttentionShape shape{3, 2, 1, 64};
  const std::vector<AttentionMass> masses = attention_mass(
      *context_of(shape, 16384, GetParam()), bench_layers(shape, GetParam()), {64, 1024}, 4, 1024);
  ASSERT_EQ(masses.size(), 6U);
  std::map<std::pair<LayerKind, std::int64_t>, double> share;
  for (const AttentionMass& mass : masses) {
    EXPECT_EQ(kind_of_layer(mass.layer), mass.kind);
    share[{mass.kind, mass.k}] = mass.share;
  }
  for (const std::int64_t k : {64, 1024}) {
    const double uniform = static_cast<double>(k) / (16384 - 1024 - 4);
    EXPECT_GT((share[{LayerKind::diffuse, k}]), uniform);
    EXPECT_LT((share[{LayerKind::diffuse, k}]), 4 * uniform);
    EXPECT_GT((share[{LayerKind::broad, k}]), (share[{LayerKind::diffuse, k}]));
    EXPECT_GT((share[{LayerKind::focused, k}]), (share[{LayerKind::broad, k}]));
    EXPECT_LE((share[{LayerKind::focused, k}]), 1.0001);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MassOfSeed, testing::Values(1, 2, 42));

TEST(AttentionMass, OfAllRowsIsOne) {
  const AttentionShape shape{1, 1, 1, 32};
  const std::vector<AttentionMass> masses =
      attention_mass(*context_of(shape, 500, 3), bench_layers(shape, 3), {400}, 40, 60);
  ASSERT_EQ(masses.size(), 1U);
  EXPECT_NEAR(masses.front().share, 1, 1e-4);  // 400 float32 exponentials of rounded differences
}

TEST(AttentionMass, IsNotToldWhenWindowAndSinksAreEverything) {
  const AttentionShape shape{1, 1, 1, 32};
  EXPECT_TRUE(
      attention_mass(*context_of(shape, 500, 3), bench_layers(shape, 3), {64}, 4, 496).empty());
}

TEST(BenchDecode, StepsSeveralSessionsTogether) {
  Silent silent;
  BenchOptions plan = small_plan();
  plan.sessions = {1, 3};
  plan.rows[1] = plan.rows[0];
  const BenchReport report = run_bench_decode(plan, {}, silent.bar);
  ASSERT_EQ(report.decode.size(), 2U);
  const std::vector<Json> lines = bench_json(report, false);
  EXPECT_EQ(lines[0]["sessions"], 1);
  EXPECT_EQ(lines[1]["sessions"], 3);
  EXPECT_EQ(report.decode[1].rows_per_head, report.decode[0].rows_per_head);
  const DecodeResult& three = report.decode[1];
  EXPECT_DOUBLE_EQ(lines[1]["tokens_per_second"], 3 / three.median());
  // Times are divided among the sessions, so that they add up to no more than the steps took.
  double parts = 0;
  for (const StepTimes& layer : three.layer_times) parts += layer.total();
  EXPECT_GT(parts, 0);
  EXPECT_LE(parts, three.mean() * 10 * 1.001);
}

TEST(BenchDecode, MeasuresEachKAndPrintsTheSameInTableAndJson) {
  Silent silent;
  const BenchReport report = run_bench_decode(small_plan(), {}, silent.bar);
  ASSERT_EQ(report.decode.size(), 2U);
  const std::vector<Json> lines = bench_json(report, true);
  const std::string text = bench_text(report, true, 200);
  ASSERT_EQ(lines.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const DecodeResult& result = report.decode[i];
    const std::int64_t k = i == 0 ? 8 : 32;
    EXPECT_EQ(result.token_seconds.size(), 10U);
    EXPECT_EQ(result.rows_per_head, static_cast<double>(k));
    // 3 layers, 2 KV heads, 40 bytes of a key; 68 tokens are window and sinks.
    EXPECT_EQ(result.key_bytes, 3 * 2 * (3000 - 68) * 40);
    EXPECT_EQ(result.row_bytes, (3 * 2 * 68 + 3 * 4 * k) * 80);
    EXPECT_LE(result.median(), result.p90());
    EXPECT_EQ(lines[i]["kv_topk"], std::to_string(k));
    EXPECT_EQ(lines[i]["layers"], 5);
    EXPECT_EQ(lines[i]["measured_layers"], 3);
    EXPECT_EQ(lines[i]["layer_seconds"].size(), 3U);
    EXPECT_EQ(lines[i]["attention_mass"].size(), 6U);
    EXPECT_EQ(lines[i]["median_seconds"].get<double>(), result.median());
    const std::string median = fmt::format("{:.3f}", 1000 * result.median());
    EXPECT_NE(text.find(median), std::string::npos) << text;
  }
  EXPECT_NE(text.find("only the first 3 of 5 layers"), std::string::npos) << text;
}

TEST(BenchDecode, ItsTablesFitTheWidthAndLoseNothing) {
  Silent silent;
  const BenchReport report = run_bench_decode(small_plan(), {}, silent.bar);
  const std::string wide = bench_text(report, true, 1000);
  for (const std::size_t width : {60U, 80U, 120U}) {
    std::istringstream text(bench_text(report, true, width));
    std::set<std::string> words;
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(width_of(line), width) << line;
      std::istringstream parts(line);
      for (std::string word; parts >> word;) words.insert(word);
    }
    std::istringstream parts(wide);
    for (std::string word; parts >> word;) EXPECT_TRUE(words.contains(word)) << word;
  }
}

TEST(BenchDecode, AFloorThatDoesNotApplyIsNull) {
  BenchOptions plan = small_plan();
  plan.rows.resize(1);
  plan.rows.front().dense_layers = 3;
  Silent silent;
  const Json line = bench_json(run_bench_decode(plan, {}, silent.bar), false).front();
  EXPECT_TRUE(line.at("key_floor_seconds").is_null());
  EXPECT_GT(line.at("row_floor_seconds").get<double>(), 0);
}

// What a row says of its parts is what it says of the whole.
TEST(BenchDecode, PartsOfATokenSumUpToItsMean) {
  Silent silent;
  const BenchReport report = run_bench_decode(small_plan(), {}, silent.bar);
  for (const Json& line : bench_json(report, false)) {
    double parts = 0;
    for (const char* name :
         {"q_out", "append", "window", "search", "attend", "tail", "merge", "other"}) {
      parts += line.at(std::string(name) + "_seconds").get<double>();
    }
    double mean = 0;
    for (const double seconds : line.at("token_seconds")) mean += seconds / 10;
    EXPECT_NEAR(parts, mean, 1e-12);
    EXPECT_FALSE(line.contains("layer_seconds"));
  }
}

TEST(BenchDecode, CountsDenseLayersAsRowsAndNotAsSearches) {
  BenchOptions plan = small_plan();
  plan.rows.resize(1);
  plan.rows.front().dense_layers = 3;
  Silent silent;
  const BenchReport report = run_bench_decode(plan, {}, silent.bar);
  EXPECT_EQ(report.decode.front().key_bytes, 0);
  EXPECT_EQ(report.decode.front().row_bytes, 3 * 2 * 3000 * 80);
  EXPECT_EQ(report.decode.front().rows_per_head, 0);
}

TEST(BenchPrefill, CountsTheRowsThatEachQuerySees) {
  Silent silent;
  const BenchReport report = run_bench_prefill(small_plan(), {}, silent.bar);
  ASSERT_EQ(report.prefill.size(), 2U);
  const double per_row = 4.0 * 4 * 20;
  EXPECT_EQ(report.prefill[0].tokens, 3000);
  EXPECT_EQ(report.prefill[0].flop, 3 * per_row * (3000.0 * 3001 / 2));
  // Window 256 and 4 sinks: the first 260 tokens see all before them, the others 260.
  EXPECT_EQ(report.prefill[1].flop, 3 * per_row * (260.0 * 261 / 2 + 2740.0 * 260));
  const std::vector<Json> lines = bench_json(report, false);
  EXPECT_EQ(lines[0]["prefill"], "dense");
  EXPECT_EQ(lines[1]["prefill"], "window");
  EXPECT_EQ(lines[1]["tokens"], 3000);
  EXPECT_NE(bench_text(report, false, 200).find("\nwindow"), std::string::npos);
}

TEST(BenchPrefill, AtTheEndOfAContextTimesItsLastChunk) {
  BenchOptions plan = small_plan();
  plan.last_chunk = true;
  plan.attention.resize(1);
  Silent silent;
  const BenchReport report = run_bench_prefill(plan, {}, silent.bar);
  EXPECT_EQ(report.prefill.front().tokens, 700);
  EXPECT_EQ(report.prefill.front().flop, 3 * 4.0 * 4 * 20 * (700.0 * (2301 + 3000) / 2));
}

TEST(BenchShape, KnowsModelsByName) {
  const AttentionShape shape = bench_shape("qwen2.5-7b-1m");
  EXPECT_EQ(shape.layers, 28);
  EXPECT_EQ(shape.q_heads, 28);
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.head_dim, 128);
}

TEST(BenchShape, OfTheBundledModelIsThatOfItsConfiguration) {
  const AttentionShape named = bench_shape("needle-14m");
  const AttentionShape read =
      bench_shape(std::string(TOPKV_SOURCE_DIR) + "/models/needle-14m/config.json");
  EXPECT_EQ(read.layers, named.layers);
  EXPECT_EQ(read.q_heads, named.q_heads);
  EXPECT_EQ(read.kv_heads, named.kv_heads);
  EXPECT_EQ(read.head_dim, named.head_dim);
}

TEST(BenchShape, CutToItsFirstLayersKeepsTheirWindows) {
  AttentionShape shape{4, 2, 1, 32};
  shape.sliding_window = {0, 128, 0, 256};
  const AttentionShape cut = first_layers(shape, 2);
  EXPECT_EQ(cut.layers, 2);
  EXPECT_EQ(cut.sliding_window, (std::vector<std::int64_t>{0, 128}));
  EXPECT_THROW(first_layers(shape, 5), UsageError);
}

}  // namespace
}  // namespace topkv::cli
