// Whole files: what can be written is told before, and a file is replaced in one step.

#include "src/core/io/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/core/io/open_file.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

TEST(Files, ANewFileAndOneToReplaceAreWritable) {
  const TempDirectory directory;
  const auto old = directory.write("old.csv", "old");
  check_writable(old);
  check_writable(directory.path() / "new.csv");
  check_writable("new-in-this-folder.csv");
  EXPECT_EQ(read_file(old), "old");
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "new.csv"));
  EXPECT_FALSE(std::filesystem::exists("new-in-this-folder.csv"));
}

TEST(Files, WhatWriteFileCouldNotReplaceIsRefused) {
  const TempDirectory directory;
  const auto file = directory.write("file", "");
  const auto link = directory.path() / "link";
  std::filesystem::create_symlink(file, link);
  const auto refused = [](const std::filesystem::path& path, std::string_view part) {
    expect_error<FileError>([&] { check_writable(path); }, path.string() + ": ", {part});
  };
  refused(directory.path(), "is a directory; expected a file");
  refused(directory.path() / "", "is a directory; expected a file");
  refused(directory.path() / "none" / "a.csv", "No such file or directory");
  refused(file / "a.csv", "Not a directory");
  refused("/dev/null", "expected a new file or a regular one");
  refused(link, "expected a new file or a regular one");
  refused(directory.path() / std::string(300, 'a'), "cannot be written");
}

TEST(Files, ErrorsWriteTheirNamesInOneLine) {
  const TempDirectory temp;
  const std::filesystem::path file = temp.path() / "a\nb";
  const std::string shown = (temp.path() / "a\\x0ab").string() + ": ";
  expect_error<FileError>([&] { read_file(file); }, shown, {"cannot be read"});
  std::filesystem::create_directory(file);
  expect_error<FileError>([&] { check_readable(file); }, shown, {"is a directory"});
  expect_error<FileError>([&] { check_writable(file); }, shown, {"is a directory"});
}

TEST(Files, ReplacesWhatIsThereInOneStep) {
  const TempDirectory directory;
  const auto old = directory.write("a.csv", "old and longer");
  std::filesystem::permissions(old, std::filesystem::perms(0640));
  write_file(old, "new");
  EXPECT_EQ(read_file(old), "new");
  EXPECT_EQ(std::filesystem::status(old).permissions(), std::filesystem::perms(0640));
  write_file(old, "");
  EXPECT_EQ(read_file(old), "");
  directory.write("b.csv.part", "somebody else's");
  write_file(directory.path() / "b.csv", "b");
  EXPECT_EQ(read_file(directory.path() / "b.csv.part"), "somebody else's");
  expect_error<FileError>([&] { write_file(directory.path() / "none" / "a.csv", "x"); },
                          (directory.path() / "none" / "a.csv").string() + ": ", {});
}

TEST(Files, OfTheLongestNamesAreReplacedToo) {
  const TempDirectory directory;
  for (const std::string& name :
       {std::string(234, 'a'), std::string(235, 'a'), std::string(255, 'a'), "b" + [] {
          std::string all;
          while (all.size() < 250) all += "\u00e9";
          return all;
        }()}) {
    write_file(directory.path() / name, "old");
    write_file(directory.path() / name, name);
    EXPECT_EQ(read_file(directory.path() / name), name);
  }
}

TEST(Files, RoomIsAskedForAndNothingIsLeft) {
  const TempDirectory directory;
  const auto path = directory.write("a.tkv", "old");
  check_room(path, 100);
  check_room(directory.path() / "new.tkv", 100);
  expect_error<FileError>([&] { check_room(path, std::int64_t{1} << 62); }, path.string() + ": ",
                          {"the file will take about 4", "free", "free some space"});
  expect_error<FileError>([&] { check_room(directory.path() / "none" / "a.tkv", 1); }, "",
                          {"folder"});
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    names.push_back(entry.path().filename().string());
  EXPECT_EQ(names, std::vector<std::string>{"a.tkv"});
  EXPECT_EQ(read_file(path), "old");
}

}  // namespace
}  // namespace topkv
