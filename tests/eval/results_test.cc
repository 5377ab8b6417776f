// Results of an evaluation on disk and as scores, tables and a picture.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/core/io/files.h"
#include "src/eval/report/eval_chart.h"
#include "src/eval/run/eval_directory.h"
#include "src/eval/run/eval_scores.h"
#include "tests/eval/svg.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

EvalResult result(const std::string& task, const std::string& method,
                  std::optional<std::int64_t> budget, std::int64_t sample,
                  std::optional<double> score, std::int64_t length = 4096) {
  EvalResult result;
  result.task = task;
  result.method = method;
  result.budget = budget;
  result.sample = sample;
  result.score = score;
  result.length = length;
  result.references = {"12"};
  result.answer = " \"12\"\n";
  result.rows_per_head = budget ? static_cast<double>(*budget) : 0;
  result.bytes_read = budget ? *budget * 100 : 64000;
  result.window = 100;
  return result;
}

Json configuration() {
  return {{"version", "0.1.0"}, {"model", "/m"},        {"tasks", {"vt"}}, {"lengths", {4096}},
          {"methods", {"a"}},   {"budgets", {64, 256}}, {"samples", 3},    {"kv_window", 1024}};
}

TEST(EvalResults, AreTheSameAfterJson) {
  EvalResult one = result("vt", "a", 64, 2, 0.4);
  one.f1 = 0.25;
  one.seed = 18446744073709551615U;
  EXPECT_EQ(to_json(eval_result_from_json(to_json(one))), to_json(one));
  const EvalResult dense = result("vt", "dense", {}, 2, {});
  EXPECT_TRUE(to_json(dense).at("budget").is_null());
  EXPECT_TRUE(to_json(dense).at("score").is_null());
  EXPECT_FALSE(eval_result_from_json(to_json(dense)).budget);
  Json unknown = to_json(one);
  unknown["bytes_read"] = nullptr;
  EXPECT_FALSE(eval_result_from_json(unknown).bytes_read);
  unknown.erase("bytes_read");  // as answers of version 0.1 have none
  EXPECT_FALSE(eval_result_from_json(unknown).bytes_read);
  one.prefill = "sparse";
  EXPECT_EQ(eval_result_from_json(to_json(one)).prefill, "sparse");
  unknown.erase("prefill");
  EXPECT_EQ(eval_result_from_json(unknown).prefill, "");
  Json broken = to_json(one);
  broken.erase("answer");
  EXPECT_THROW(eval_result_from_json(broken), Json::exception);
}

TEST(EvalDirectory, GoesOnAndTakesMoreOfItsLists) {
  const TempDirectory temp;
  {
    EvalDirectory directory(temp.path(), configuration(), false);
    directory.append(result("vt", "a", 64, 0, 1));
    directory.append(result("vt", "dense", {}, 0, 1));
  }
  Json more = configuration();
  more["tasks"] = {"cwe"};
  more["lengths"] = {1024};
  more["methods"] = {"b", "a"};
  more["budgets"] = {16};
  more["samples"] = 1;
  EvalDirectory directory(temp.path(), more, false);
  EXPECT_EQ(directory.configuration().at("tasks"), (Json{"vt", "cwe"}));
  EXPECT_EQ(directory.configuration().at("lengths"), (Json{1024, 4096}));
  EXPECT_EQ(directory.configuration().at("methods"), (Json{"a", "b"}));
  EXPECT_EQ(directory.configuration().at("budgets"), (Json{16, 64, 256}));
  EXPECT_EQ(directory.configuration().at("samples"), 3);
  EXPECT_TRUE(directory.has(result("vt", "a", 64, 0, {})));
  EXPECT_TRUE(directory.has(result("vt", "dense", {}, 0, {})));
  EXPECT_FALSE(directory.has(result("vt", "a", 256, 0, {})));
  EXPECT_FALSE(directory.has(result("vt", "a", 64, 1, {})));
  EXPECT_FALSE(directory.has(result("vt", "a", {}, 0, {})));
  EXPECT_FALSE(directory.has(result("vt", "a", 64, 0, {}, 1024)));
}

TEST(EvalDirectory, RefusesOtherSettingsNamingThem) {
  const TempDirectory temp;
  { EvalDirectory(temp.path(), configuration(), false).append(result("vt", "a", 64, 0, 1)); }
  Json other = configuration();
  other["kv_window"] = 64;
  expect_error<FileError>([&] { EvalDirectory(temp.path(), other, false); }, temp.path().string(),
                          {"kv_window 1024 there, 64 here", "--fresh", "-o"});
}

TEST(EvalDirectory, RefusesADamagedLineAndCutsOneThatIsNotWhole) {
  const TempDirectory temp;
  { EvalDirectory(temp.path(), configuration(), false).append(result("vt", "a", 64, 0, 1)); }
  const std::string line = read_file(temp.path() / "samples.jsonl");
  temp.write("samples.jsonl", line + line.substr(0, 40));
  {
    EvalDirectory directory(temp.path(), configuration(), false);
    EXPECT_EQ(directory.results().size(), 1U);
    directory.append(result("vt", "a", 64, 1, 1));
  }
  EXPECT_EQ(EvalDirectory(temp.path(), configuration(), false).results().size(), 2U);
  temp.write("samples.jsonl", line + "{\"task\": 3}\n");
  expect_error<FileError>([&] { EvalDirectory(temp.path(), configuration(), false); },
                          (temp.path() / "samples.jsonl").string(),
                          {"line 2 is not an answer", "--fresh"});
}

/// Two methods over two tasks, one of which counts characters; "b" lacks the other task.
std::vector<EvalResult> some_results() {
  EvalResult asked = result("qa", "a,b", 64, 0, 1);
  asked.f1 = 0.5;
  return {result("vt", "a,b", 64, 0, 0.4),       result("vt", "a,b", 64, 1, 0.8),
          result("vt", "dense", {}, 0, 1),       result("vt", "dense", {}, 1, 1),
          result("repetition", "a,b", 64, 0, 7), asked,
          result("qa", "dense", {}, 0, 0),       result("qa", "dense", {}, 1, {})};
}

const EvalOrder order = {{"repetition", "vt", "qa"}, {4096}, {"dense", "a,b"}};

TEST(EvalScores, AreMeansInTheOrderOfTheRun) {
  const std::vector<Score> scores = scores_of(some_results(), order);
  std::vector<std::string> found;
  for (const Score& score : scores) found.push_back(score.method + " " + score.task);
  EXPECT_EQ(found, (std::vector<std::string>{"dense vt", "dense qa", "a,b repetition", "a,b vt",
                                             "a,b qa", "a,b qa_f1"}));
  EXPECT_DOUBLE_EQ(scores[0].mean, 100);
  EXPECT_EQ(scores[0].samples, 2);
  EXPECT_EQ(scores[1].samples, 1);  // the other has no references
  EXPECT_DOUBLE_EQ(scores[2].mean, 7);
  EXPECT_NEAR(scores[3].mean, 60, 1e-9);
  EXPECT_EQ(scores[3].interval->kind, "t");
  EXPECT_EQ(scores[0].interval->kind, "wilson");
}

TEST(EvalScores, SummaryHasRulersForm) {
  EXPECT_EQ(summary_csv(score_table(scores_of(some_results(), order))),
            "method,length,budget,vt,qa,repetition,qa_f1,average,rows_per_head,bytes_read\n"
            "dense,4096,,100.00,0.00,,,50.00,0.00,64000\n"
            "\"a,b\",4096,64,60.00,100.00,7.00,50.00,80.00,64.00,6400\n");
}

TEST(EvalScores, AnAverageNeedsAllTasks) {
  const ScoreTable table = score_table(scores_of(
      {result("vt", "a", 64, 0, 1), result("qa", "a", 64, 0, 1), result("vt", "a", 16, 0, 1)},
      {{"vt", "qa"}, {4096}, {"a"}}));
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_FALSE(table.rows[0].average);  // of 16 rows
  EXPECT_DOUBLE_EQ(*table.rows[1].average, 100);
}

TEST(EvalScores, TheLongFormHasALineForEachScore) {
  const std::string csv = scores_csv(scores_of(some_results(), order));
  EXPECT_TRUE(csv.starts_with(
      "method,task,length,budget,n,score,ci_low,ci_high,interval,unit,rows_per_head,bytes_read\n"
      "dense,vt,4096,,2,100.00,34.24,100.00,wilson,percent,0.00,64000\n"))
      << csv;
  EXPECT_NE(csv.find("\n\"a,b\",repetition,4096,64,1,7.00,,,,characters,64.00,6400\n"), csv.npos)
      << csv;
}

TEST(EvalChart, ShowsALineForEachMethod) {
  const std::string svg = eval_svg(score_table(scores_of(some_results(), order)), "T & <t>", "s");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("dense, all rows: 50.0"), svg.npos);
  EXPECT_NE(svg.find("a,b, budget 64, 64: 80.0"), svg.npos);
  EXPECT_NE(svg.find("length 4K"), svg.npos);
  // Beside it against what is read.
  EXPECT_NE(svg.find("dense, 62.5 KiB: 50.0"), svg.npos);
  EXPECT_NE(svg.find("a,b, budget 64, 6.2 KiB: 80.0"), svg.npos);
  EXPECT_NE(svg.find(">bytes read per token<"), svg.npos);
}

/// Where a chart has the mark that is told of by this text.
double mark_x(const std::string& svg, const std::string& title) {
  const std::size_t end = svg.find("<title>" + title + "<");
  EXPECT_NE(end, svg.npos) << title;
  return std::stod(svg.substr(svg.rfind(" d='M", end) + 5));
}

TEST(EvalChart, AWiderWindowIsRows) {
  EvalResult streaming = result("vt", "streaming", 64, 0, 0.5);
  streaming.rows_per_head = 0;
  streaming.window += 64;
  const std::vector<EvalResult> results = {result("vt", "exact", 64, 0, 1), streaming,
                                           result("vt", "exact", 256, 0, 1)};
  const std::string svg =
      eval_svg(score_table(scores_of(results, {{"vt"}, {4096}, {"exact", "streaming"}})), "t", "s");
  EXPECT_NE(svg.find(">rows of a query head beyond 100 of sinks and window<"), svg.npos);
  const double exact = mark_x(svg, "exact, budget 64, 64: 100.0");
  EXPECT_EQ(mark_x(svg, "streaming, budget 64, 64: 50.0"), exact);
  EXPECT_GT(mark_x(svg, "exact, budget 256, 256: 100.0"), exact);
}

TEST(EvalChart, MethodsWhoseBytesAreNotKnownHaveNoPlaceAmongThese) {
  EvalResult graph = result("vt", "hnsw", 64, 0, 0.5);
  graph.bytes_read = {};
  const std::vector<EvalResult> results = {result("vt", "exact", 64, 0, 1), graph};
  const auto table = [](const std::vector<EvalResult>& results) {
    return score_table(scores_of(results, {{"vt"}, {4096}, {"exact", "hnsw"}}));
  };
  EXPECT_TRUE(summary_csv(table({graph})).ends_with(",64.00,\n"));
  const std::string svg = eval_svg(table(results), "t", "s");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("hnsw, budget 64, 64: 50.0"), svg.npos);
  EXPECT_NE(svg.find(">hnsw (bytes read: unknown)<"), svg.npos);
  EXPECT_NE(svg.find("exact, budget 64, 6.2 KiB: 100.0"), svg.npos);
  // Where none are known there is no such panel.
  EXPECT_EQ(eval_svg(table({graph}), "t", "s").find("bytes read per token"), std::string::npos);
}

TEST(EvalChart, ShowsCharactersWhereTheyAreAll) {
  const ScoreTable table = score_table(
      scores_of({result("repetition", "a", 64, 0, 250)}, {{"repetition"}, {4096}, {"a"}}));
  EXPECT_DOUBLE_EQ(*charted(table, table.rows.front()), 250);
  const std::string svg = eval_svg(table, "t", "s");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("Characters repeated"), svg.npos);
  EXPECT_NE(svg.find(">300<"), svg.npos);
}

}  // namespace
}  // namespace topkv
