// Cells of a needle run: as JSON, in order, and summed up.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "src/eval/report/summary.h"
#include "src/eval/run/needle_cells.h"
#include "tests/support/eval_cells.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

TEST(Cells, SurviveTheWayToJsonAndBack) {
  EvalResult cell = cell_at(4096, 12.5, "hnsw:M=16,ef=128", true);
  cell.seed = ~std::uint64_t{0};
  cell.answer = "a\"b\\c\n\x01 \xe2\x80\xa6";
  cell.recall = 0.5;
  const Json json = to_cell(cell);
  EXPECT_EQ(to_cell(result_from_cell(Json::parse(json.dump()))), json);
  EXPECT_EQ(json.at("prefill_times").at("search"), 3);
  EXPECT_GE(json.size(), 30U);
  cell.prefill = "window";
  EXPECT_EQ(result_from_cell(to_cell(cell)).prefill, "window");
  Json earlier = json;
  earlier.erase("prefill");  // as cells of version 0.1 have none
  EXPECT_EQ(result_from_cell(earlier).prefill, "");
}

TEST(Cells, WhatWasNotMeasuredIsNull) {
  EvalResult cell = cell_at(4096, 5, "exact", true);
  cell.decode_steps = 0;
  const Json json = to_cell(cell);
  EXPECT_TRUE(json.at("recall").is_null());
  EXPECT_TRUE(json.at("decode_tokens_per_second").is_null());
  const EvalResult back = result_from_cell(Json::parse(json.dump()));
  EXPECT_FALSE(back.recall.has_value());
  EXPECT_FALSE(back.decode_tokens_per_second().has_value());
}

TEST(Cells, StandInGridOrderWhateverOrderTheyRanIn) {
  std::vector<EvalResult> cells = {
      cell_at(32768, 5, "exact", true), cell_at(4096, 95, "hnsw", true),
      cell_at(4096, 95, "exact", true), cell_at(4096, 5, "exact", true)};
  cells = in_grid_order(cells, {"hnsw", "exact"});
  EXPECT_EQ(cells[0].method, "hnsw");
  EXPECT_EQ(cells[1].depth, 5);
  EXPECT_EQ(cells[2].depth, 95);
  EXPECT_EQ(cells[3].length, 32768);
}

TEST(Summaries, CountPerLengthAndIndex) {
  const std::vector<Summary> summaries = summarise(sample_cells());
  ASSERT_EQ(summaries.size(), 2U);
  EXPECT_EQ(summaries[0].found, 1);
  EXPECT_EQ(summaries[0].asked, 2);
  EXPECT_DOUBLE_EQ(summaries[0].score(), 0.5);
  EXPECT_DOUBLE_EQ(summaries[0].decode_tokens_per_second.value(), 18);
  EXPECT_EQ(summaries[1].rows_bytes, 4096 * 32768);
}

TEST(Summaries, LeaveEmptyWhatWasNotMeasured) {
  std::vector<EvalResult> cells = sample_cells();
  cells.resize(1);
  cells[0].context_tokens = 4091;
  cells[0].decode_steps = 0;
  const std::string csv = summary_csv(summarise(cells));
  EXPECT_EQ(csv.find("-1"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n4096,4091,exact,1,1,1.0000,4091.00,,64.00,,"), std::string::npos) << csv;
}

TEST(Summaries, RecallIsTheMeanOfTheCellsThatMeasuredIt) {
  std::vector<EvalResult> cells = sample_cells();
  cells[0].recall = 0.5;
  EXPECT_DOUBLE_EQ(summarise(cells)[0].recall.value(), 0.5);
  EXPECT_FALSE(summarise(cells)[1].recall.has_value());
}

TEST(Summaries, CsvQuotesIndexSpecsWithCommas) {
  std::vector<EvalResult> cells = {cell_at(4096, 5, "faiss:IVF4,\"x\"", true)};
  cells[0].context_tokens = 4090;
  std::istringstream csv(summary_csv(summarise(cells)));
  std::string heading;
  std::string line;
  std::getline(csv, heading);
  std::getline(csv, line);
  EXPECT_TRUE(heading.starts_with("length,context_tokens,index,asked,found,score,")) << heading;
  EXPECT_TRUE(line.starts_with("4096,4090,\"faiss:IVF4,\"\"x\"\"\",1,1,1.0000,")) << line;
}

}  // namespace
}  // namespace topkv
