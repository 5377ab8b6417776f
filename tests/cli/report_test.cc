// What a needle run shows: tables, heatmaps, progress lines.

#include "src/cli/terminal/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "src/cli/terminal/eta.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/terminal_heatmap.h"
#include "src/cli/terminal/text_layout.h"
#include "tests/support/eval_cells.h"

namespace topkv::cli {
namespace {

TEST(Report, TablesLineUpByCharactersNotBytes) {
  EXPECT_EQ(format_table({{"a", "b"}, {{"é", "1"}, {"xyz", "22"}}, {false, true}}),
            "a     b\n"
            "é     1\n"
            "xyz  22\n");
}

TEST(Report, AnswersAreShownOnOneLineEach) {
  EXPECT_EQ(one_line("  a\n\n b\tc ", 40), "a b c");
  EXPECT_EQ(one_line("abcdef", 4), "abc…");
  EXPECT_EQ(one_line("ééééé", 3), "éé…");
  std::vector<EvalResult> cells = sample_cells();
  cells[0].answer = "line\nbreak";
  const std::string table = answers_table(cells, 200);
  EXPECT_NE(table.find("line break"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5) << table;
  EXPECT_EQ(table.find("index"), std::string::npos) << table;
}

TEST(Report, WhatWasNotMeasuredIsADash) {
  std::vector<EvalResult> cells = sample_cells();
  cells.resize(1);
  cells[0].decode_steps = 0;
  const std::string table = summary_table(summarise(cells), 200);
  EXPECT_NE(table.find("64       -  "), std::string::npos) << table;
}

// Every table and picture, at widths that terminals have.
TEST(Report, NothingIsWiderThanTheTerminal) {
  std::vector<EvalResult> cells = sample_cells();
  for (std::size_t i = 0; i < 2; ++i)
    cells[i].method = "faiss:OPQ32_128,IVF65536,PQ32x4fs;nprobe=64";
  cells[0].answer = "01234567-89ab-4cde-8f01-23456789abcd and some more";
  cells[0].references = {cells[0].answer};
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

TEST(Report, TimeSharesAddUpToTheWhole) {
  EXPECT_EQ(time_shares({.matmul = 5, .attention = 3, .other = 2}),
            "matmul 50 %  attention 30 %  search 0 %  other 20 %");
  EXPECT_EQ(time_shares({.matmul = 5, .attention = 3, .other = 2, .indexing = 9}),
            "matmul 50 %  attention 30 %  search 0 %  other 20 %");
  EXPECT_EQ(time_shares({}), "not measured");
}

TEST(Unescaped, TakesEscapesOfLineEndsAndTabsAndLeavesOthers) {
  EXPECT_EQ(unescaped(R"(\n)"), "\n");
  EXPECT_EQ(unescaped(R"(a\tb\r\n)"), "a\tb\r\n");
  EXPECT_EQ(unescaped(R"(\\n)"), R"(\n)");
  EXPECT_EQ(unescaped(R"(\end{a} \x \)"), R"(\end{a} \x \)");
  EXPECT_EQ(unescaped("\n"), "\n");
  EXPECT_EQ(unescaped(""), "");
}

TEST(Heatmap, TerminalColoursAreOnlyThereWhenWanted) {
  const Grid grid = make_grid(sample_cells(), {32768, 4096, 1048576}, {95, 5}, {"exact"});
  const std::string plain = terminal_heatmap(grid, false, 80);
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(plain.find("✓"), std::string::npos);
  EXPECT_NE(plain.find("✗"), std::string::npos);
  EXPECT_NE(plain.find("32K"), std::string::npos);
  EXPECT_NE(terminal_heatmap(grid, true, 80).find("\x1b[48;5;"), std::string::npos);
}

TEST(ProgressText, TellsHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 25000, 100000}, 10, 30.0),
            "prefill  25,000/100,000 tokens  25 %  2,500 tokens/s  30 s left");
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 100000, 100000}, 40, 0.0),
            "prefill  100,000/100,000 tokens  100 %  2,500 tokens/s  in 40 s");
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 25000, 100000}, 10, std::nullopt),
            "prefill  25,000/100,000 tokens  25 %  2,500 tokens/s");
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 0, 100000}, 0.5, std::nullopt),
            "prefill  0/100,000 tokens  0 %");
  EXPECT_EQ(progress_text("prefill", {"prefill", "tokens", 0, 100000}, 12, std::nullopt),
            "prefill  0/100,000 tokens  0 %  12 s so far");
  EXPECT_EQ(progress_text("ask", {"ask", "needles", 0, 0}, 0, std::nullopt), "ask  0/0 needles");
  EXPECT_EQ(progress_text("save", {"save", "bytes", std::int64_t{1} << 30, std::int64_t{4} << 30},
                          2, 6.0),
            "save  1.0 GiB/4.0 GiB  25 %  512.0 MiB/s  6.0 s left");
}

TEST(ProgressText, InANarrowTerminalLosesTheLeastFirst) {
  const Progress progress{"prefill", "tokens", 25000, 100000};
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 30, 60), "1M prefill  25 %  30 s left");
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 30, 20), "1M prefill  25 %");
  EXPECT_EQ(progress_text("1M prefill", progress, 10, 30, 12), "1M pr…  25 %");
  for (std::size_t width = 1; width < 100; ++width) {
    EXPECT_LE(width_of(progress_text("1M faiss:IVF,SQ8", progress, 10, 30, width)), width);
  }
}

/// What chunks of so many tokens take that attend all before them.
double dense_seconds(double tokens) { return 1e-3 * tokens + 1.4e-7 / 2 * tokens * tokens; }

TEST(Pace, OfADensePrefillIsKnownFromItsFirstChunks) {
  Pace pace;
  constexpr std::int64_t total = 180'000;
  for (std::int64_t done = 2048; done < total / 2; done += 2048) {
    pace.add(done, dense_seconds(static_cast<double>(done)));
    const double left = dense_seconds(total) - dense_seconds(static_cast<double>(done));
    const auto known = pace.seconds_left(total);
    if (done < 8 * 2048) {
      EXPECT_FALSE(known);
      continue;
    }
    ASSERT_TRUE(known);
    EXPECT_NEAR(*known, left, 1e-6 * left) << done;
    // What a rate that stays as it is would say is far too little.
    EXPECT_LT(*pace.steady_seconds_left(total), left) << done;
  }
}

// On a host a chunk is a minute's work for a large model: whoever waits is to know before the
// eighth.
TEST(Pace, OfAShortTextIsKnownAsSoonAsTheFitCarriesThatFar) {
  for (const auto& [chunks, first] : {std::pair{4, 2}, {9, 3}, {16, 4}, {49, 7}, {500, 8}}) {
    Pace pace;
    const std::int64_t total = chunks * 2048;
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
      const std::int64_t done = chunk * 2048;
      pace.add(done, dense_seconds(static_cast<double>(done)));
      ASSERT_EQ(pace.seconds_left(total).has_value(), chunk >= first) << chunk << " of " << chunks;
      if (chunk < first) continue;
      const double left =
          dense_seconds(static_cast<double>(total)) - dense_seconds(static_cast<double>(done));
      EXPECT_NEAR(*pace.seconds_left(total), left, 1e-6 * left) << chunk << " of " << chunks;
    }
  }
}

TEST(Pace, OfAShortTextWithUnevenChunksIsAboutRight) {
  for (std::int64_t chunks = 4; chunks <= 49; ++chunks) {
    Pace pace;
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
      pace.add(chunk * 2048, static_cast<double>(chunk) * (chunk % 2 == 0 ? 1.03 : 0.97));
      const auto left = pace.seconds_left(chunks * 2048);
      const auto expected = static_cast<double>(chunks - chunk);
      if (left) {
        EXPECT_NEAR(*left, expected, 0.35 * expected + 0.1) << chunk << " of " << chunks;
      }
    }
  }
}

TEST(Pace, WithUnevenChunksIsAboutRight) {
  Pace pace;
  constexpr std::int64_t total = 180'000;
  for (std::int64_t chunk = 1; chunk * 2048 < total * 46 / 100; ++chunk) {
    const double uneven = chunk % 2 == 0 ? 1.03 : 0.97;
    pace.add(chunk * 2048, uneven * dense_seconds(static_cast<double>(chunk * 2048)));
  }
  const double left = dense_seconds(total) - dense_seconds(static_cast<double>(pace.done()));
  EXPECT_NEAR(*pace.seconds_left(total), left, 0.15 * left);
}

TEST(Pace, OfWorkThatIsAlwaysAsFastIsItsRate) {
  Pace pace;
  for (std::int64_t done = 50; done <= 500; done += 50) {
    pace.add(done, 0.02 * static_cast<double>(done));
    pace.add(done, 100);  // told again, later: nothing more was done
  }
  EXPECT_NEAR(*pace.seconds_left(1000), 10, 1e-9);
  EXPECT_NEAR(*pace.steady_seconds_left(1000), 10, 1e-9);
  EXPECT_EQ(pace.done(), 500);
  EXPECT_EQ(pace.seconds(), 10);
}

// The first chunk has much to load: a fit would have the work get faster and faster.
TEST(Pace, NeverGetsFasterThanItWas) {
  Pace pace;
  pace.add(30, 10);
  for (std::int64_t done = 60; done <= 300; done += 30)
    pace.add(done, 10 + static_cast<double>(done) / 100);
  const auto left = pace.seconds_left(10'000);
  ASSERT_TRUE(left);
  EXPECT_GT(*left, 13.0 / 300 * 9'700 / 2);
}

/// A bar in memory, whose time stands still until it is told.
struct TimedBar {
  TimedBar() = default;
  TimedBar(const TimedBar&) = delete;  // the bar knows where it is
  TimedBar& operator=(const TimedBar&) = delete;

  void wait(double seconds) {
    now += std::chrono::duration_cast<ProgressBar::Clock::duration>(
        std::chrono::duration<double>(seconds));
  }

  std::string shown() {
    std::fflush(memory.file);
    return {memory.text, memory.size};
  }

  struct Memory {
    ~Memory() {
      std::fclose(file);
      std::free(text);
    }
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* file = open_memstream(&text, &size);
  };

  Memory memory;
  ProgressBar::Clock::time_point now{std::chrono::hours(1)};
  ProgressBar bar{memory.file, false, [this] { return now; }};
};

TEST(ProgressBar, CountsTheTimeLeftDownUntilMoreIsDone) {
  TimedBar timed;
  const ProgressFn told = timed.bar.callback("prefill");
  for (std::int64_t done = 100; done <= 800; done += 100) {
    EXPECT_FALSE(timed.bar.seconds_left());
    timed.wait(2);
    told({"prefill", "tokens", done, 10'000});
  }
  ASSERT_TRUE(timed.bar.seconds_left());
  EXPECT_NEAR(*timed.bar.seconds_left(), 184, 1e-6);
  timed.wait(1.5);
  told({"prefill", "tokens", 800, 10'000});
  EXPECT_NEAR(*timed.bar.seconds_left(), 182.5, 1e-6);
  timed.wait(200);
  told({"prefill", "tokens", 800, 10'000});
  EXPECT_EQ(*timed.bar.seconds_left(), 0);
  told({"prefill", "tokens", 10'000, 10'000});
  EXPECT_FALSE(timed.bar.seconds_left());
}

TEST(ProgressBar, ShowsAnIndexAndItsTailUnderTwoTitles) {
  TimedBar timed;
  const ProgressFn built = timed.bar.index_callback("8K codes", "8K tail");
  timed.wait(2);
  built({"index", "keys", 100, 100});
  timed.wait(4);
  built({"tail", "keys", 100, 100});
  EXPECT_EQ(timed.shown(),
            "8K codes  100/100 keys  100 %  50.0 keys/s  in 2.0 s\n8K tail  100/100 keys  100 %  "
            "25.0 keys/s  in 4.0 s\n");
}

TEST(ProgressBar, OfTokensThatEachTakeAsLongTellsTheTimeLeftFromTheFirst) {
  TimedBar timed;
  const ProgressFn told = timed.bar.callback("prefill", Cost::steady);
  timed.wait(2);
  told({"prefill", "tokens", 100, 10'000});
  timed.bar.finish();
  EXPECT_EQ(timed.shown(), "prefill  100/10,000 tokens  1 %  50.0 tokens/s  3 min 18 s left\n");
}

TEST(ProgressBar, OfABriefWorkShowsNothingInTheFirstSecond) {
  TimedBar timed;
  const ProgressFn brief = timed.bar.brief_callback("prompt");
  timed.wait(0.9);
  brief({"prompt", "tokens", 256, 512});
  brief({"prompt", "tokens", 512, 512});
  timed.bar.finish();
  EXPECT_EQ(timed.shown(), "");
  const ProgressFn longer = timed.bar.brief_callback("prompt");
  timed.wait(0.9);
  longer({"prompt", "tokens", 256, 512});
  timed.wait(0.2);
  longer({"prompt", "tokens", 256, 512});
  timed.wait(0.9);
  longer({"prompt", "tokens", 512, 512});
  timed.bar.finish();
  EXPECT_EQ(timed.shown(),
            "prompt  256/512 tokens  50 %  284 tokens/s\n"
            "prompt  512/512 tokens  100 %  256 tokens/s  in 2.0 s\n");
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
