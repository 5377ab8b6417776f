// Whole files: what can be written is told before, and a file is replaced in one step.

#include "src/core/files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/temp_directory.h"
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

}  // namespace
}  // namespace topkv
