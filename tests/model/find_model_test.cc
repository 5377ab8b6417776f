// Models by name in a cache folder that is laid out as Hugging Face's tools do it.
#include "topkv/find_model.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

constexpr const char* commit = "0123456789abcdef0123456789abcdef01234567";

class FindModel : public testing::Test {
 protected:
  FindModel() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
      ::unsetenv(name);
    ::setenv("HF_HUB_CACHE", cache_.path().c_str(), 1);
  }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  fs::path snapshot() const { return model_ / "snapshots" / commit; }

  /// A file as the cache keeps it: a link to a blob.
  void add(const std::string& name, const std::string& text = "{}") const {
    write(model_ / "blobs" / ("of-" + name), text);
    fs::create_directories(snapshot());
    fs::create_symlink("../../blobs/of-" + name, snapshot() / name);
  }

  void add_whole_model() const {
    write(model_ / "refs/main", std::string(commit) + "\n");
    add("config.json");
    add("tokenizer.json");
    add("model.safetensors");
  }

  void expect_refused(std::string_view name, const std::vector<std::string_view>& parts,
                      ModelFiles files = ModelFiles::all) const {
    expect_error<FileError>([&] { find_model(name, files); }, "", parts);
  }

  TempDirectory cache_;
  fs::path model_ = cache_.path() / "models--Org-1--a.Model_2";
  std::string name_ = "Org-1/a.Model_2";
};

TEST_F(FindModel, NameIsTheSnapshotThatMainIsAt) {
  add_whole_model();
  EXPECT_EQ(find_model(name_), snapshot());
  EXPECT_EQ(find_model(name_ + "@main"), snapshot());
  EXPECT_EQ(find_model(name_ + "@" + commit), snapshot());
}

TEST_F(FindModel, RevisionIsABranchOrTag) {
  add_whole_model();
  fs::create_directories(model_ / "refs/refs/pr");
  fs::rename(model_ / "refs/main", model_ / "refs/refs/pr/1");
  EXPECT_EQ(find_model(name_ + "@refs/pr/1"), snapshot());
  expect_refused(name_, {"refs/main", "`hf download Org-1/a.Model_2`"});
  expect_refused(name_ + "@v2", {"refs/v2", "`hf download Org-1/a.Model_2 --revision v2`"});
}

TEST_F(FindModel, CacheFolderIsWhereTheEnvironmentSays) {
  add_whole_model();
  ::unsetenv("HF_HUB_CACHE");
  TempDirectory home;
  const auto expect_in = [&](const char* variable, const fs::path& value, const fs::path& folder) {
    ::setenv(variable, value.c_str(), 1);
    fs::create_directories(folder.parent_path());
    fs::create_directory_symlink(cache_.path(), folder);
    EXPECT_EQ(find_model(name_).string().substr(0, folder.string().size()), folder.string());
    fs::remove(folder);
    expect_refused(name_, {"no model of that name in " + folder.string()});
  };
  expect_in("HOME", home.path() / "a", home.path() / "a/.cache/huggingface/hub");
  expect_in("XDG_CACHE_HOME", home.path() / "b", home.path() / "b/huggingface/hub");
  expect_in("HF_HOME", home.path() / "c", home.path() / "c/hub");
  expect_in("HUGGINGFACE_HUB_CACHE", home.path() / "d", home.path() / "d");
  expect_in("HF_HUB_CACHE", home.path() / "e", home.path() / "e");
  expect_in("HF_HUB_CACHE", "~/f", home.path() / "a/f");
}

TEST_F(FindModel, PathThatIsThereWinsOverAName) {
  add_whole_model();
  TempDirectory work;
  const fs::path before = fs::current_path();
  fs::current_path(work.path());
  fs::create_directories(name_);
  EXPECT_EQ(find_model(name_), name_);
  write("Org-1/model.gguf", "GGUF");
  EXPECT_EQ(find_model("Org-1/model.gguf"), "Org-1/model.gguf");
  fs::current_path(before);
}

TEST_F(FindModel, ModelThatIsNotThereIsToldHowToDownload) {
  expect_refused("Qwen/Qwen3-8B", {"Qwen/Qwen3-8B: no such file or folder", cache_.path().string(),
                                   "`hf download Qwen/Qwen3-8B`"});
}

TEST_F(FindModel, SnapshotThatIsNotWholeNamesTheFileThatLacks) {
  add_whole_model();
  const std::string line = "`hf download Org-1/a.Model_2`";
  fs::remove(model_ / "blobs/of-tokenizer.json");  // a link to nothing is left
  expect_refused(name_, {snapshot().string() + ": lacks tokenizer.json", line});
  write(model_ / "blobs/of-tokenizer.json", "{}");

  fs::remove(snapshot() / "model.safetensors");
  expect_refused(name_, {"lacks model.safetensors;", line});
  EXPECT_EQ(find_model(name_, ModelFiles::description), snapshot());

  add("model.safetensors.index.json",
      R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  add("model-1.safetensors");
  expect_refused(name_, {"lacks model-2.safetensors;", line});
  add("model-2.safetensors");
  EXPECT_EQ(find_model(name_), snapshot());

  fs::remove(snapshot() / "config.json");
  expect_refused(name_, {"lacks config.json;", line}, ModelFiles::description);

  fs::remove_all(snapshot());
  expect_refused(name_, {snapshot().string() + ": is missing", line});
  write(model_ / "refs/main", "../../elsewhere");
  expect_refused(name_, {"refs/main: does not hold a commit's name", line});
  write(model_ / "refs/main", "");
  expect_refused(name_, {"refs/main: does not hold a commit's name", line});
  fs::resize_file(model_ / "refs/main", 100'000'000'000);
  expect_refused(name_, {"refs/main: has 100000000000 bytes; expected at most 4096"});
}

TEST_F(FindModel, OneGgufFileOfASnapshotIsTheModel) {
  write(model_ / "refs/main", commit);
  add("README.md");
  add("q8.gguf", "GGUF");
  EXPECT_EQ(find_model(name_), snapshot() / "q8.gguf");
  add("mmproj-F16.gguf", "GGUF");  // the same model's encoder of images
  EXPECT_EQ(find_model(name_), snapshot() / "q8.gguf");
  add("q4.gguf", "GGUF");
  expect_refused(name_, {"has 2 *.gguf files", (snapshot() / "q4.gguf").string()});
}

TEST_F(FindModel, AModelInSeveralPartsIsItsFirst) {
  write(model_ / "refs/main", commit);
  for (const char* part : {"1", "2", "3"})
    add(std::string("q8-0000") + part + "-of-00003.gguf", "GGUF");
  EXPECT_EQ(find_model(name_), snapshot() / "q8-00001-of-00003.gguf");
  add("q4-00002-of-00002.gguf", "GGUF");  // whose first is not there
  expect_refused(name_, {"has 2 *.gguf files"});
}

TEST_F(FindModel, AModelMayLieInAFolderOfItsType) {
  write(model_ / "refs/main", commit);
  add("README.md");
  const fs::path folder = snapshot() / "Q8_0";
  for (const char* part : {"1", "2"})
    write(folder / (std::string("a-0000") + part + "-of-00002.gguf"), "GGUF");
  write(folder / "mmproj-F16.gguf", "GGUF");
  EXPECT_EQ(find_model(name_), folder / "a-00001-of-00002.gguf");
  write(snapshot() / "Q4_0" / "a.gguf", "GGUF");
  expect_refused(name_, {"has 2 *.gguf files", (snapshot() / "Q4_0/a.gguf").string()});
  fs::remove_all(snapshot() / "Q4_0");
  fs::remove(folder / "a-00001-of-00002.gguf");
  EXPECT_EQ(find_model(name_), folder / "a-00002-of-00002.gguf");  // loading says what is missing
}

TEST_F(FindModel, WhatCanBeNoNameIsGivenBackAsAPath) {
  add_whole_model();
  write(cache_.path() / "models--..--x/refs/main", commit);
  for (const std::string text :
       {"",         "model",   "/no/such", "./a/b",    "../b",   "a/..",   "../x",
        "a/b/c",    "a//b",    "/a",       "a/",       "a b/c",  "a/b;c",  "a/$(b)",
        "a/b\n",    "-a/b",    "a/b-",     "a/.b",     "a/b..c", "a/b--c", "a/b@",
        "a/b@../c", "a/b@c d", "a/b@-c",   "a/b@c//d", "a/b@/c", "a@b",    "a/\xC3\xA9"}) {
    EXPECT_EQ(find_model(text), text);
  }
  EXPECT_EQ(find_model("a/" + std::string(97, 'b')), "a/" + std::string(97, 'b'));
}

}  // namespace
}  // namespace topkv
