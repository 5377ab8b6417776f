// What a needle run keeps on disk: its cells, its settings, and going on from them.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "src/core/io/files.h"
#include "src/eval/run/eval_directory.h"
#include "tests/support/eval_cells.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

const Json needle_run = {{"version", "0.1.0"}, {"lengths", {4096}}, {"kv_topk", "64"}};

/// The folder of `topkv needle`.
class NeedleDirectory : public EvalDirectory {
 public:
  NeedleDirectory(const std::filesystem::path& path, const Json& configuration, bool fresh)
      : EvalDirectory(path, configuration, fresh, cells_format()) {}

  bool has(std::int64_t length, double depth, const std::string& index) const {
    return EvalDirectory::has(cell_at(length, depth, index, false));
  }
};

TEST(NeedleDirectory, GoesOnWithTheCellsOfTheSameConfiguration) {
  const TempDirectory temp;
  const auto path = temp.path() / "deep" / "out";
  {
    NeedleDirectory directory(path, needle_run, false);
    EXPECT_FALSE(directory.has(4096, 5, "exact"));
    directory.append(cell_at(4096, 5, "exact", true));
  }
  const NeedleDirectory again(path, needle_run, false);
  EXPECT_TRUE(again.has(4096, 5, "exact"));
  EXPECT_FALSE(again.has(4096, 15, "exact"));
  EXPECT_FALSE(again.has(4096, 5, "hnsw"));
  EXPECT_FALSE(again.has(8192, 5, "exact"));
}

TEST(NeedleDirectory, RefusesAnotherConfigurationNamingWhatDiffers) {
  const TempDirectory temp;
  { NeedleDirectory(temp.path(), needle_run, false).append(cell_at(4096, 5, "exact", true)); }
  Json other = needle_run;
  other["kv_topk"] = "128";
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), other, false); }, temp.path().string(),
                          {"kv_topk \"64\" there, \"128\" here", "--fresh", "-o"});
  const NeedleDirectory untouched(temp.path(), needle_run, false);
  EXPECT_EQ(untouched.results().size(), 1U);
}

TEST(NeedleDirectory, TakesMoreLengthsAndIndicesAndKeepsTheCellsThere) {
  const TempDirectory temp;
  Json first = needle_run;
  first["kv_index"] = {"hnsw"};
  { NeedleDirectory(temp.path(), first, false).append(cell_at(4096, 5, "hnsw", true)); }
  const std::string before = read_file(temp.path() / "cells.jsonl");
  Json more = needle_run;
  more["lengths"] = {2048, 8192};
  more["kv_index"] = {"exact", "hnsw:M=16,efc=100,ef=0"};
  {
    NeedleDirectory directory(temp.path(), more, false);
    EXPECT_EQ(directory.configuration().at("lengths"), (Json{2048, 4096, 8192}));
    EXPECT_EQ(directory.configuration().at("kv_index"), (Json{"hnsw", "exact"}));
    EXPECT_TRUE(directory.has(4096, 5, "hnsw"));
    EXPECT_FALSE(directory.has(8192, 5, "hnsw"));
    directory.append(cell_at(8192, 5, "exact", false));
  }
  const std::string after = read_file(temp.path() / "cells.jsonl");
  EXPECT_TRUE(after.starts_with(before));
  const NeedleDirectory all(temp.path(), first, false);
  EXPECT_EQ(all.results().size(), 2U);
  EXPECT_EQ(all.configuration().at("lengths"), (Json{2048, 4096, 8192}));
}

TEST(NeedleDirectory, ADifferentSettingIsRefusedWhateverElseIsMore) {
  const TempDirectory temp;
  { NeedleDirectory(temp.path(), needle_run, false).append(cell_at(4096, 5, "exact", true)); }
  Json other = needle_run;
  other["lengths"] = {4096, 8192};
  other["depths"] = {5, 50};
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), other, false); }, temp.path().string(),
                          {"depths not set there, [5,50] here"});
}

// A run that is refused after this, or ends before its first answer, must not cost what was there.
TEST(NeedleDirectory, ChangesNothingBeforeTheFirstCell) {
  const TempDirectory temp;
  { NeedleDirectory(temp.path(), needle_run, false).append(cell_at(4096, 5, "exact", true)); }
  temp.write("summary.csv", "old");
  const std::string cells = read_file(temp.path() / "cells.jsonl") + "{\"cut off";
  temp.write("cells.jsonl", cells);
  const std::string run = read_file(temp.path() / "run.json");
  Json more = needle_run;
  more["lengths"] = {4096, 8192};
  for (const bool fresh : {false, true}) {
    const NeedleDirectory unused(temp.path(), more, fresh);
    EXPECT_EQ(unused.results().size(), fresh ? 0U : 1U);
  }
  EXPECT_EQ(read_file(temp.path() / "cells.jsonl"), cells);
  EXPECT_EQ(read_file(temp.path() / "run.json"), run);
  EXPECT_EQ(read_file(temp.path() / "summary.csv"), "old");
}

TEST(NeedleDirectory, LeavesNothingBehindWhereNothingWasWritten) {
  const TempDirectory temp;
  { const NeedleDirectory unused(temp.path() / "a" / "b" / "c", needle_run, false); }
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "a"));
  temp.write("mine.txt", "x");
  { const NeedleDirectory unused(temp.path(), needle_run, true); }
  EXPECT_TRUE(std::filesystem::exists(temp.path() / "mine.txt"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "cells.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "run.json"));
}

TEST(NeedleDirectory, ByDefaultIsAnotherOneForEverySettingButWhatMayGrow) {
  const auto of = [](const char* member, const Json& value) {
    Json json = {{"model", "/models/Tiny 1B\\xff/"},
                 {"lengths", {4096}},
                 {"kv_index", {"exact"}},
                 {"prefill", "window"}};
    json[member] = value;
    return default_eval_directory(json, cells_format()).string();
  };
  const std::string usual = of("prefill", "window");
  EXPECT_TRUE(usual.starts_with("out/needle-Tiny-1B-xff-")) << usual;
  EXPECT_EQ(of("lengths", {1, 2}), usual);
  EXPECT_EQ(of("kv_index", {"hnsw"}), usual);
  EXPECT_NE(of("prefill", "dense"), usual);
  EXPECT_NE(of("kv_recall", true), usual);
}

TEST(NeedleDirectory, TakesAnotherConfigurationWhereNoCellIsFinished) {
  const TempDirectory temp;
  { const NeedleDirectory first(temp.path(), needle_run, false); }
  Json other = needle_run;
  other["kv_topk"] = "128";
  { NeedleDirectory(temp.path(), other, false).append(cell_at(4096, 5, "exact", true)); }
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), needle_run, false); },
                          temp.path().string(), {"kv_topk"});
}

TEST(NeedleDirectory, FreshForgetsTheEarlierRunWithTheFirstCellAndLeavesOtherFilesAlone) {
  const TempDirectory temp;
  { NeedleDirectory(temp.path(), needle_run, false).append(cell_at(4096, 5, "exact", true)); }
  temp.write("heatmap.svg", "old");
  temp.write("notes.txt", "mine");
  Json other = needle_run;
  other["kv_topk"] = "128";
  NeedleDirectory fresh(temp.path(), other, true);
  EXPECT_TRUE(fresh.results().empty());
  fresh.append(cell_at(8192, 5, "exact", true));
  const std::string written = read_file(temp.path() / "cells.jsonl");
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "heatmap.svg"));
  EXPECT_EQ(read_file(temp.path() / "notes.txt"), "mine");
}

TEST(NeedleDirectory, CutsOffTheLineThatAKilledRunLeftIncomplete) {
  const TempDirectory temp;
  {
    NeedleDirectory directory(temp.path(), needle_run, false);
    directory.append(cell_at(4096, 5, "exact", true));
    directory.append(cell_at(4096, 15, "exact", true));
  }
  const std::string whole = read_file(temp.path() / "cells.jsonl");
  const std::size_t second = whole.find('\n') + 1;
  for (const std::size_t kept : {second, second + 1, second + 50, whole.size() - 1}) {
    temp.write("cells.jsonl", whole.substr(0, kept));
    NeedleDirectory directory(temp.path(), needle_run, false);
    EXPECT_EQ(directory.results().size(), 1U) << kept;
    directory.append(cell_at(4096, 15, "exact", true));
    EXPECT_EQ(read_file(temp.path() / "cells.jsonl"), whole) << kept;
  }
}

TEST(NeedleDirectory, RefusesADamagedLineRatherThanGuess) {
  const TempDirectory temp;
  { const NeedleDirectory first(temp.path(), needle_run, false); }
  for (const char* line :
       {"{\"length\": 4096}\n", "garbage\n", "[]\n", "\n", "{\"length\": \"x\"}\n"}) {
    temp.write("cells.jsonl", line);
    expect_error<FileError>([&] { NeedleDirectory(temp.path(), needle_run, false); },
                            (temp.path() / "cells.jsonl").string(), {"line 1", "--fresh"});
  }
}

TEST(NeedleDirectory, RefusesCellsThatNoConfigurationExplains) {
  const TempDirectory temp;
  { NeedleDirectory(temp.path(), needle_run, false).append(cell_at(4096, 5, "exact", true)); }
  std::filesystem::remove(temp.path() / "run.json");
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), needle_run, false); },
                          temp.path().string(), {"no run.json"});
  temp.write("run.json", "[1, 2");
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), needle_run, false); },
                          temp.path().string(), {"run.json", "--fresh"});
}

TEST(NeedleDirectory, IsHeldByOneRunAtATime) {
  const TempDirectory temp;
  const NeedleDirectory first(temp.path(), needle_run, false);
  expect_error<FileError>([&] { NeedleDirectory(temp.path(), needle_run, true); },
                          temp.path().string(), {"another topkv"});
}

TEST(NeedleDirectory, AFileInItsPlaceIsRefused) {
  const TempDirectory temp;
  const auto file = temp.write("taken", "x");
  expect_error<FileError>([&] { NeedleDirectory(file, needle_run, false); }, file.string(), {});
}

}  // namespace
}  // namespace topkv
