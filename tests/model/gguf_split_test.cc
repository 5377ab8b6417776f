// A model in several GGUF files: the same as in one, and parts that are missing, renamed or of
// another model, each named in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

gguf::Value short_number(const char* key, std::uint16_t value) {
  return {key, gguf::bytes(gguf::u16) + gguf::bytes(value)};
}

gguf::File whole_model() { return gguf::llama(config_of({}), random_tensors({})); }

class GgufSplit : public testing::Test {
 protected:
  /// The model in parts as llama.cpp's tool writes them: metadata in the first, tensors in turn.
  static std::vector<gguf::File> split(std::uint16_t count) {
    const gguf::File whole = whole_model();
    std::vector<gguf::File> parts(count);
    parts.front().values = whole.values;
    for (std::size_t i = 0; i < whole.tensors.size(); ++i)
      parts[i % count].tensors.push_back(whole.tensors[i]);
    for (std::uint16_t i = 0; i < count; ++i) {
      parts[i].set(short_number("split.no", i));
      parts[i].set(short_number("split.count", count));
      parts[i].set(
          gguf::number("split.tensors.count", static_cast<std::uint32_t>(whole.tensors.size())));
    }
    return parts;
  }

  static std::string name(std::size_t part, std::size_t count) {
    return fmt::format("small-{:05}-of-{:05}.gguf", part, count);
  }
  std::filesystem::path path(std::size_t part) const { return temp_.path() / name(part, 3); }

  void write(const std::vector<gguf::File>& parts) const {
    for (std::size_t i = 0; i < parts.size(); ++i)
      temp_.write(name(i + 1, parts.size()), parts[i].content());
  }

  /// Three parts that were changed; the message begins with the path of one of them.
  template <class E>
  void expect_refused(const std::function<void(std::vector<gguf::File>&)>& change,
                      std::size_t named, const std::vector<std::string_view>& parts) const {
    auto files = split(3);
    change(files);
    write(files);
    const std::string begins = path(named).string() + ": ";
    expect_error<E>([&] { ModelConfig::load(path(1)); }, begins, parts);
    expect_error<E>([&] { Model::load(path(1)); }, begins, parts);
    expect_error<E>([&] { Model::plan(path(1), {}, {}, {}); }, begins, parts);
  }

  TempDirectory temp_;
};

TEST_F(GgufSplit, PartsAreTheModelInOneFile) {
  const Model whole = Model::load(temp_.write("whole.gguf", whole_model().content()));
  const auto tokens = some_tokens(20, 101);
  const auto logits = logits_both_ways(whole, tokens);
  for (const std::uint16_t count : {1, 2, 3, 12}) {
    SCOPED_TRACE(count);
    write(split(count));
    const std::filesystem::path first = temp_.path() / name(1, count);
    EXPECT_EQ(logits_both_ways(Model::load(first), tokens), logits);
    EXPECT_EQ(Model::plan(first, {}, {}, {}).weights_bytes,
              Model::plan(temp_.path() / "whole.gguf", {}, {}, {}).weights_bytes);
  }
  // The first part may have the metadata alone (--no-tensor-first-split).
  auto parts = split(3);
  for (const gguf::Tensor& tensor : parts[0].tensors) parts[1].tensors.push_back(tensor);
  parts[0].tensors.clear();
  write(parts);
  EXPECT_EQ(logits_both_ways(Model::load(path(1)), tokens), logits);
}

TEST_F(GgufSplit, AFingerprintIsOfAllParts) {
  auto parts = split(3);
  write(parts);
  const std::string before = Model::load(path(1)).fingerprint();
  EXPECT_EQ(Model::load(path(1)).fingerprint(), before);
  parts[2].tensors.back().bytes.back() ^= 1;
  write(parts);
  EXPECT_NE(Model::load(path(1)).fingerprint(), before);
}

TEST_F(GgufSplit, PartsThatAreNotThereOrRenamedAreNamed) {
  write(split(3));
  expect_error<FileError>([&] { Model::load(path(2)); }, path(2).string() + ": ",
                          {"is part 2 of 3", "expected the first", name(1, 3)});
  std::filesystem::remove(path(3));
  expect_error<FileError>([&] { Model::load(path(1)); }, path(3).string() + ": ",
                          {"is missing; expected part 3 of 3", name(1, 3), "fetch"});
  write(split(3));
  for (const char* other : {"model.gguf", "small-00001-of-00004.gguf", "small-00002-of-00003.gguf",
                            "small-1-of-3.gguf", "-00001-of-00003.gguf"}) {
    SCOPED_TRACE(other);
    const std::filesystem::path renamed = temp_.write(other, split(3).front().content());
    expect_error<FileError>([&] { Model::load(renamed); }, renamed.string() + ": ",
                            {"is part 1 of 3", "-00001-of-00003.gguf"});
  }
}

TEST_F(GgufSplit, PartsOfOtherModelsAreNamed) {
  const auto set = [](std::size_t part, const gguf::Value& value) {
    return [=](std::vector<gguf::File>& files) { files[part].set(value); };
  };
  expect_refused<FileError>(set(1, short_number("split.no", 2)), 2,
                            {"split.no is 2; expected 1", "another model"});
  expect_refused<FileError>(set(2, short_number("split.count", 4)), 3,
                            {"split.count is 4; expected 3", "another model"});
  expect_refused<FileError>(set(2, gguf::number("split.tensors.count", 20)), 3,
                            {"split.tensors.count is 20; expected 21", "another model"});
  expect_refused<FileError>([](auto& files) { files[1].erase("split.no"); }, 2,
                            {"split.no is missing"});
  expect_refused<FileError>(
      [](auto& files) { files[2].tensors.push_back(files[0].tensors.front()); }, 3,
      {"has tensor", "which small-00001-of-00003.gguf has too"});
  expect_refused<FileError>([](auto& files) { files[2].tensors.pop_back(); }, 1,
                            {"split.tensors.count is 21; expected 20", "3 parts"});
  expect_refused<FileError>(set(0, short_number("split.no", 3)), 1, {"split.no is 3", "0 to 2"});
  expect_refused<FileError>(set(0, gguf::number("split.count", 70000)), 1,
                            {"split.count is 70000"});
  expect_refused<FileError>(set(0, gguf::words("split.count", "three")), 1,
                            {"split.count is \"three\""});
}

TEST_F(GgufSplit, WhatIsWrongWithinAPartIsSaidOfThatPart) {
  const auto in_third = [](const std::function<void(gguf::Tensor&)>& change) {
    return [=](std::vector<gguf::File>& files) { change(files[2].tensors.front()); };
  };
  expect_refused<FileError>(in_third([](auto& t) { t.dims.back() = std::uint64_t{1} << 40; }), 3,
                            {"bytes at", "cut off"});
  auto files = split(3);
  gguf::Tensor& tensor = files[2].tensor("blk.0.attn_norm.weight");
  tensor.dims[0] = 48;
  write(files);
  expect_error<FileError>([&] { Model::load(path(1)); }, path(3).string() + ": ",
                          {"attn_norm.weight has shape [48]", "[96]"});
  const std::string content = split(3)[1].content();
  write(split(3));
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{3}, std::size_t{30}, content.size() / 2}) {
    temp_.write(name(2, 3), content.substr(0, length));
    expect_error<FileError>([&] { Model::load(path(1)); }, path(2).string() + ": ", {});
  }
}

TEST_F(GgufSplit, PiecesOfAFileAreToBeJoined) {
  const auto piece = temp_.write("big.gguf.part1of2", whole_model().content().substr(0, 1000));
  expect_error<FileError>([&] { Model::load(piece); }, piece.string() + ": ",
                          {"is a piece of a file", "join", "cat big.gguf.part*of2 > big.gguf"});
}

}  // namespace
}  // namespace topkv
