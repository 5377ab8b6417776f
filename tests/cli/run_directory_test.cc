// What a needle run keeps on disk: its cells, its settings, and going on from them.

#include "src/cli/commands/run_directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "src/core/io/files.h"
#include "tests/support/eval_cells.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

const Json configuration = {{"version", "0.1.0"}, {"lengths", {4096}}, {"kv_topk", "64"}};

TEST(RunDirectory, GoesOnWithTheCellsOfTheSameConfiguration) {
  const TempDirectory temp;
  const auto path = temp.path() / "deep" / "out";
  {
    RunDirectory directory(path, configuration, false);
    EXPECT_FALSE(directory.has(4096, 5, "exact"));
    directory.append(cell_at(4096, 5, "exact", true));
  }
  const RunDirectory again(path, configuration, false);
  EXPECT_TRUE(again.has(4096, 5, "exact"));
  EXPECT_FALSE(again.has(4096, 15, "exact"));
  EXPECT_FALSE(again.has(4096, 5, "hnsw"));
  EXPECT_FALSE(again.has(8192, 5, "exact"));
}

TEST(RunDirectory, RefusesAnotherConfigurationNamingWhatDiffers) {
  const TempDirectory temp;
  { RunDirectory(temp.path(), configuration, false).append(cell_at(4096, 5, "exact", true)); }
  Json other = configuration;
  other["kv_topk"] = "128";
  expect_error<FileError>([&] { RunDirectory(temp.path(), other, false); }, temp.path().string(),
                          {"kv_topk \"64\" there, \"128\" here", "--fresh", "-o"});
  const RunDirectory untouched(temp.path(), configuration, false);
  EXPECT_EQ(untouched.cells().size(), 1U);
}

TEST(RunDirectory, TakesMoreLengthsAndIndicesAndKeepsTheCellsThere) {
  const TempDirectory temp;
  Json first = configuration;
  first["kv_index"] = {"hnsw"};
  { RunDirectory(temp.path(), first, false).append(cell_at(4096, 5, "hnsw", true)); }
  const std::string before = read_file(temp.path() / "cells.jsonl");
  Json more = configuration;
  more["lengths"] = {2048, 8192};
  more["kv_index"] = {"exact", "hnsw:M=16,efc=100,ef=0"};
  {
    RunDirectory directory(temp.path(), more, false);
    EXPECT_EQ(directory.configuration().at("lengths"), (Json{2048, 4096, 8192}));
    EXPECT_EQ(directory.configuration().at("kv_index"), (Json{"hnsw", "exact"}));
    EXPECT_TRUE(directory.has(4096, 5, "hnsw"));
    EXPECT_FALSE(directory.has(8192, 5, "hnsw"));
    directory.append(cell_at(8192, 5, "exact", false));
  }
  const std::string after = read_file(temp.path() / "cells.jsonl");
  EXPECT_TRUE(after.starts_with(before));
  const RunDirectory all(temp.path(), first, false);
  EXPECT_EQ(all.cells().size(), 2U);
  EXPECT_EQ(all.configuration().at("lengths"), (Json{2048, 4096, 8192}));
}

TEST(RunDirectory, ADifferentSettingIsRefusedWhateverElseIsMore) {
  const TempDirectory temp;
  { RunDirectory(temp.path(), configuration, false).append(cell_at(4096, 5, "exact", true)); }
  Json other = configuration;
  other["lengths"] = {4096, 8192};
  other["depths"] = {5, 50};
  expect_error<FileError>([&] { RunDirectory(temp.path(), other, false); }, temp.path().string(),
                          {"depths not set there, [5,50] here"});
}

// A run that is refused after this, or ends before its first answer, must not cost what was there.
TEST(RunDirectory, ChangesNothingBeforeTheFirstCell) {
  const TempDirectory temp;
  { RunDirectory(temp.path(), configuration, false).append(cell_at(4096, 5, "exact", true)); }
  temp.write("summary.csv", "old");
  const std::string cells = read_file(temp.path() / "cells.jsonl") + "{\"cut off";
  temp.write("cells.jsonl", cells);
  const std::string run = read_file(temp.path() / "run.json");
  Json more = configuration;
  more["lengths"] = {4096, 8192};
  for (const bool fresh : {false, true}) {
    const RunDirectory unused(temp.path(), more, fresh);
    EXPECT_EQ(unused.cells().size(), fresh ? 0U : 1U);
  }
  EXPECT_EQ(read_file(temp.path() / "cells.jsonl"), cells);
  EXPECT_EQ(read_file(temp.path() / "run.json"), run);
  EXPECT_EQ(read_file(temp.path() / "summary.csv"), "old");
}

TEST(RunDirectory, LeavesNothingBehindWhereNothingWasWritten) {
  const TempDirectory temp;
  { const RunDirectory unused(temp.path() / "a" / "b" / "c", configuration, false); }
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "a"));
  temp.write("mine.txt", "x");
  { const RunDirectory unused(temp.path(), configuration, true); }
  EXPECT_TRUE(std::filesystem::exists(temp.path() / "mine.txt"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "cells.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "run.json"));
}

TEST(RunDirectory, ByDefaultIsAnotherOneForEverySettingButWhatMayGrow) {
  const auto of = [](const char* member, const Json& value) {
    Json json = {{"model", "/models/Tiny 1B\\xff/"},
                 {"lengths", {4096}},
                 {"kv_index", {"exact"}},
                 {"prefill", "window"}};
    json[member] = value;
    return default_directory(json).string();
  };
  const std::string usual = of("prefill", "window");
  EXPECT_TRUE(usual.starts_with("out/needle-Tiny-1B-xff-")) << usual;
  EXPECT_EQ(of("lengths", {1, 2}), usual);
  EXPECT_EQ(of("kv_index", {"hnsw"}), usual);
  EXPECT_NE(of("prefill", "dense"), usual);
  EXPECT_NE(of("kv_recall", true), usual);
}

TEST(RunDirectory, TakesAnotherConfigurationWhereNoCellIsFinished) {
  const TempDirectory temp;
  { const RunDirectory first(temp.path(), configuration, false); }
  Json other = configuration;
  other["kv_topk"] = "128";
  { RunDirectory(temp.path(), other, false).append(cell_at(4096, 5, "exact", true)); }
  expect_error<FileError>([&] { RunDirectory(temp.path(), configuration, false); },
                          temp.path().string(), {"kv_topk"});
}

TEST(RunDirectory, FreshForgetsTheEarlierRunWithTheFirstCellAndLeavesOtherFilesAlone) {
  const TempDirectory temp;
  { RunDirectory(temp.path(), configuration, false).append(cell_at(4096, 5, "exact", true)); }
  temp.write("heatmap.svg", "old");
  temp.write("notes.txt", "mine");
  Json other = configuration;
  other["kv_topk"] = "128";
  RunDirectory fresh(temp.path(), other, true);
  EXPECT_TRUE(fresh.cells().empty());
  fresh.append(cell_at(8192, 5, "exact", true));
  const std::string written = read_file(temp.path() / "cells.jsonl");
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "heatmap.svg"));
  EXPECT_EQ(read_file(temp.path() / "notes.txt"), "mine");
}

TEST(RunDirectory, CutsOffTheLineThatAKilledRunLeftIncomplete) {
  const TempDirectory temp;
  {
    RunDirectory directory(temp.path(), configuration, false);
    directory.append(cell_at(4096, 5, "exact", true));
    directory.append(cell_at(4096, 15, "exact", true));
  }
  const std::string whole = read_file(temp.path() / "cells.jsonl");
  const std::size_t second = whole.find('\n') + 1;
  for (const std::size_t kept : {second, second + 1, second + 50, whole.size() - 1}) {
    temp.write("cells.jsonl", whole.substr(0, kept));
    RunDirectory directory(temp.path(), configuration, false);
    EXPECT_EQ(directory.cells().size(), 1U) << kept;
    directory.append(cell_at(4096, 15, "exact", true));
    EXPECT_EQ(read_file(temp.path() / "cells.jsonl"), whole) << kept;
  }
}

TEST(RunDirectory, RefusesADamagedLineRatherThanGuess) {
  const TempDirectory temp;
  { const RunDirectory first(temp.path(), configuration, false); }
  for (const char* line :
       {"{\"length\": 4096}\n", "garbage\n", "[]\n", "\n", "{\"length\": \"x\"}\n"}) {
    temp.write("cells.jsonl", line);
    expect_error<FileError>([&] { RunDirectory(temp.path(), configuration, false); },
                            (temp.path() / "cells.jsonl").string(), {"line 1", "--fresh"});
  }
}

TEST(RunDirectory, RefusesCellsThatNoConfigurationExplains) {
  const TempDirectory temp;
  { RunDirectory(temp.path(), configuration, false).append(cell_at(4096, 5, "exact", true)); }
  std::filesystem::remove(temp.path() / "run.json");
  expect_error<FileError>([&] { RunDirectory(temp.path(), configuration, false); },
                          temp.path().string(), {"no run.json"});
  temp.write("run.json", "[1, 2");
  expect_error<FileError>([&] { RunDirectory(temp.path(), configuration, false); },
                          temp.path().string(), {"run.json", "--fresh"});
}

TEST(RunDirectory, IsHeldByOneRunAtATime) {
  const TempDirectory temp;
  const RunDirectory first(temp.path(), configuration, false);
  expect_error<FileError>([&] { RunDirectory(temp.path(), configuration, true); },
                          temp.path().string(), {"another topkv"});
}

TEST(RunDirectory, AFileInItsPlaceIsRefused) {
  const TempDirectory temp;
  const auto file = temp.write("taken", "x");
  expect_error<FileError>([&] { RunDirectory(file, configuration, false); }, file.string(), {});
}

}  // namespace
}  // namespace topkv::cli
