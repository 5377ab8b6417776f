// What a needle run shows: tables, heatmaps, progress lines.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "src/cli/heatmap.h"
#include "src/cli/progress_bar.h"
#include "src/cli/report.h"
#include "src/cli/text.h"
#include "tests/cli_cells.h"

namespace topkv::cli {
namespace {

std::vector<Cell> sample_cells() {
  return {cell_at(4096, 5, "exact", true), cell_at(4096, 95, "exact", false),
          cell_at(32768, 5, "exact", true), cell_at(32768, 95, "exact", true)};
}

TEST(Report, TablesLineUpByCharactersNotBytes) {
  EXPECT_EQ(format_table({"a", "b"}, {{"é", "1"}, {"xyz", "22"}}, {false, true}),
            "a     b\n"
            "é     1\n"
            "xyz  22\n");
}

TEST(Report, AnswersAreShownOnOneLineEach) {
  EXPECT_EQ(one_line("  a\n\n b\tc ", 40), "a b c");
  EXPECT_EQ(one_line("abcdef", 4), "abc…");
  EXPECT_EQ(one_line("ééééé", 3), "éé…");
  std::vector<Cell> cells = sample_cells();
  cells[0].answer = "line\nbreak";
  const std::string table = answers_table(cells, 200);
  EXPECT_NE(table.find("line break"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5) << table;
  EXPECT_EQ(table.find("index"), std::string::npos) << table;
}

TEST(Report, CellsStandInGridOrderWhateverOrderTheyRanIn) {
  std::vector<Cell> cells = {cell_at(32768, 5, "exact", true), cell_at(4096, 95, "hnsw", true),
                             cell_at(4096, 95, "exact", true), cell_at(4096, 5, "exact", true)};
  cells = in_grid_order(cells, {"hnsw", "exact"});
  EXPECT_EQ(cells[0].index, "hnsw");
  EXPECT_EQ(cells[1].depth, 5);
  EXPECT_EQ(cells[2].depth, 95);
  EXPECT_EQ(cells[3].length, 32768);
}

TEST(Report, SummariesCountPerLengthAndIndex) {
  const std::vector<Summary> summaries = summarise(sample_cells());
  ASSERT_EQ(summaries.size(), 2U);
  EXPECT_EQ(summaries[0].found, 1);
  EXPECT_EQ(summaries[0].asked, 2);
  EXPECT_DOUBLE_EQ(summaries[0].score(), 0.5);
  EXPECT_DOUBLE_EQ(summaries[0].decode_tokens_per_second.value(), 18);
  EXPECT_EQ(summaries[1].rows_bytes, 4096 * 32768);
}

TEST(Report, WhatWasNotMeasuredIsADashInTablesAndEmptyInCsv) {
  std::vector<Cell> cells = sample_cells();
  cells.resize(1);
  cells[0].context_tokens = 4091;
  cells[0].decode_steps = 0;
  const std::string csv = summary_csv(summarise(cells));
  EXPECT_EQ(csv.find("-1"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n4096,4091,exact,1,1,1.0000,3000.00,,64.00,,"), std::string::npos) << csv;
  const std::string table = summary_table(summarise(cells), 200);
  EXPECT_NE(table.find("64       -  "), std::string::npos) << table;
}

TEST(Report, RecallIsTheMeanOfTheCellsThatMeasuredIt) {
  std::vector<Cell> cells = sample_cells();
  cells[0].recall = 0.5;
  EXPECT_DOUBLE_EQ(summarise(cells)[0].recall.value(), 0.5);
  EXPECT_FALSE(summarise(cells)[1].recall.has_value());
}

// Every table and picture, at widths that terminals have.
TEST(Report, NothingIsWiderThanTheTerminal) {
  std::vector<Cell> cells = sample_cells();
  for (std::size_t i = 0; i < 2; ++i)
    cells[i].index = "faiss:OPQ32_128,IVF65536,PQ32x4fs;nprobe=64";
  cells[0].value = cells[0].answer = "01234567-89ab-4cde-8f01-23456789abcd and some more";
  for (const std::size_t width : {40U, 80U, 200U}) {
    const Grid grid =
        make_grid(cells, {1, 2, 4, 8, 16, 32, 64, 128, 4096, 32768}, {5, 95}, {"exact", "hnsw"});
    std::istringstream text(answers_table(cells, width) + summary_table(summarise(cells), width) +
                            terminal_heatmap(grid, false, width));
    for (std::string line; std::getline(text, line);) EXPECT_LE(width_of(line), width) << line;
  }
}

TEST(Report, ATableInPartsHasItsKeysInEachAndEveryFigureOnce) {
  const std::string whole = summary_table(summarise(sample_cells()), 200);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 3) << whole;
  const std::string parts = summary_table(summarise(sample_cells()), 80);
  const auto count = [&](const std::string& word) {
    std::size_t n = 0;
    for (auto at = parts.find(word); at != std::string::npos; at = parts.find(word, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("context  index"), 2U) << parts;
  for (const char* heading : {"found", "prefill tok/s", "decode tok/s", "rows/head", "recall",
                              "KV rows", "index size", "index wait", "first token"}) {
    EXPECT_EQ(count(heading), 1U) << heading << "\n" << parts;
  }
}

TEST(Report, CsvQuotesIndexSpecsWithCommas) {
  std::vector<Cell> cells = {cell_at(4096, 5, "faiss:IVF4,\"x\"", true)};
  cells[0].context_tokens = 4090;
  std::istringstream csv(summary_csv(summarise(cells)));
  std::string heading;
  std::string line;
  std::getline(csv, heading);
  std::getline(csv, line);
  EXPECT_TRUE(heading.starts_with("length,context_tokens,index,asked,found,score,")) << heading;
  EXPECT_TRUE(line.starts_with("4096,4090,\"faiss:IVF4,\"\"x\"\"\",1,1,1.0000,")) << line;
}

TEST(Report, TimeSharesAddUpToTheWhole) {
  EXPECT_EQ(time_shares({.matmul = 5, .attention = 3, .other = 2}),
            "matmul 50 %  attention 30 %  search 0 %  other 20 %");
  EXPECT_EQ(time_shares({.matmul = 5, .attention = 3, .other = 2, .indexing = 9}),
            "matmul 50 %  attention 30 %  search 0 %  other 20 %");
  EXPECT_EQ(time_shares({}), "not measured");
}

Grid sample_grid(const std::vector<std::string>& indices) {
  return make_grid(sample_cells(), {32768, 4096, 1048576}, {95, 5}, indices);
}

TEST(Heatmap, GridsAreSortedAndKnowWhatWasNotRun) {
  const Grid grid = sample_grid({"exact", "hnsw:M=16"});
  EXPECT_EQ(grid.lengths, (std::vector<std::int64_t>{4096, 32768, 1048576}));
  EXPECT_EQ(grid.depths, (std::vector<double>{5, 95}));
  EXPECT_EQ(grid.panels[0].found[0][0], std::optional<bool>(true));
  EXPECT_EQ(grid.panels[0].found[1][0], std::optional<bool>(false));
  EXPECT_EQ(grid.panels[0].found[0][2], std::nullopt);
  EXPECT_EQ(grid.panels[1].found[0][0], std::nullopt);
}

TEST(Heatmap, TerminalColoursAreOnlyThereWhenWanted) {
  const Grid grid = sample_grid({"exact"});
  const std::string plain = terminal_heatmap(grid, false, 80);
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(plain.find("✓"), std::string::npos);
  EXPECT_NE(plain.find("✗"), std::string::npos);
  EXPECT_NE(plain.find("32K"), std::string::npos);
  EXPECT_NE(terminal_heatmap(grid, true, 80).find("\x1b[48;5;"), std::string::npos);
}

// Tags nest and close, attributes are quoted, and no text holds a bare & or <.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < xml.size()) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) + 1 - at);
      EXPECT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;" ||
                  entity == "&apos;")
          << entity;
    }
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    bool quoted = false;
    for (; end < xml.size() && (quoted || xml[end] != '>'); ++end) {
      if (xml[end] == '\'') quoted = !quoted;
      ASSERT_NE(xml[end], '<') << xml.substr(at, 80);
    }
    ASSERT_LT(end, xml.size());
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

TEST(Heatmap, SvgIsWellFormedWhateverTheNames) {
  const std::string svg =
      svg_heatmap(sample_grid({"exact", "<&\"'>"}), "A & <B>", "it's \x01 \"so\"");
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'"));
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(Heatmap, SvgDrawsEveryCellOnceAndLabelsBothAxes) {
  const std::string svg = svg_heatmap(sample_grid({"exact"}), "title", "subtitle");
  const auto count = [&](const std::string& part) {
    std::size_t n = 0;
    for (auto at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("class='found'"), 3U + 1U);  // and one in the legend
  EXPECT_EQ(count("class='missed'"), 1U + 1U);
  EXPECT_EQ(count("class='open'"), 2U + 1U);
  for (const char* label : {">4K<", ">32K<", ">1M<", ">5 %<", ">95 %<", "context length (tokens)",
                            "depth of the needle", ">found<", ">missed<", ">not run<"}) {
    EXPECT_EQ(count(label), 1U) << label;
  }
}

TEST(ProgressText, TellsHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 25000, 100000}, 10),
            "prefill  25,000/100,000 tokens  25 %  2,500 tokens/s  30 s left");
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 100000, 100000}, 40),
            "prefill  100,000/100,000 tokens  100 %  2,500 tokens/s  in 40 s");
  EXPECT_EQ(progress_text("ask", {"ask", "needles", 0, 0}, 0), "ask  0/0 needles");
}

TEST(ProgressText, InANarrowTerminalLosesTheLeastFirst) {
  const Progress progress{"prefill", "tokens", 25000, 100000};
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 60), "1M prefill  25 %  30 s left");
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 20), "1M prefill  25 %");
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 12), "1M pr…  25 %");
  for (std::size_t width = 1; width < 100; ++width) {
    EXPECT_LE(width_of(progress_text("1M faiss:IVF,SQ8", progress, 10, width)), width);
  }
}

std::string progress_output(bool terminal) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    ProgressBar bar(out, terminal);
    for (int done = 0; done <= 1000; ++done) bar.report("work", {"stage", "steps", done, 1000});
    bar.note("a note");
  }
  std::fclose(out);
  std::string output(text, size);
  std::free(text);
  return output;
}

TEST(ProgressBar, InAPipeShowsTheFirstAndTheLastOfQuickWork) {
  const std::string output = progress_output(false);
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 3) << output;
  EXPECT_TRUE(output.starts_with("work  0/1,000 steps")) << output;
  EXPECT_NE(output.find("\nwork  1,000/1,000 steps  100 %"), std::string::npos) << output;
  EXPECT_EQ(output.find('\r'), std::string::npos);
}

TEST(ProgressBar, OnATerminalUpdatesOneLine) {
  const std::string output = progress_output(true);
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 2) << output;
  EXPECT_NE(output.find('\r'), std::string::npos);
  EXPECT_EQ(output.find('\x1b'), std::string::npos);
}

// What a terminal would show of lines written over one another.
std::vector<std::string> shown(const std::string& output) {
  std::vector<std::string> lines(1);
  std::size_t at = 0;
  for (const char c : output) {
    if (c == '\r') {
      at = 0;
    } else if (c == '\n') {
      lines.emplace_back();
      at = 0;
    } else {
      if (at == lines.back().size()) lines.back() += ' ';
      lines.back()[at++] = c;
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

TEST(ProgressBar, AShorterLineLeavesNothingOfALongerOne) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    ProgressBar bar(out, true);
    bar.report("a rather long title", {"stage", "steps", 0, 1000});
    bar.note("a note");
    bar.report("a rather long title", {"stage", "steps", 1000, 1000});
    bar.report("brief", {"other", "x", 1, 1});
  }
  std::fclose(out);
  const std::vector<std::string> lines = shown(std::string(text, size));
  std::free(text);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "a note");
  EXPECT_TRUE(lines[1].starts_with("a rather long title  1,000/1,000 steps  100 %")) << lines[1];
  EXPECT_TRUE(lines[2].starts_with("brief  1/1 x  100 %")) << lines[2];
}

}  // namespace
}  // namespace topkv::cli
