// What a model is known by: the files that it is made of, and no others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/model/weights/safetensors.h"
#include "tests/support/temp_directory.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

class Fingerprint : public testing::Test {
 protected:
  Fingerprint() {
    for (const auto& file : fs::directory_iterator(TOPKV_SOURCE_DIR "/models/needle-14m"))
      fs::create_symlink(file.path(), folder_.path() / file.path().filename());
  }
  std::string fingerprint() const { return Model::load(folder_.path()).fingerprint(); }

  TempDirectory folder_;
};

TEST_F(Fingerprint, DoesNotDependOnWhatElseLiesInTheDirectory) {
  const std::string before = fingerprint();
  EXPECT_EQ(before, Model::load(TOPKV_SOURCE_DIR "/models/needle-14m").fingerprint());
  folder_.write("consolidated.safetensors", "of another tool");
  folder_.write("model-00001-of-00002.safetensors", "of a download that was given up");
  EXPECT_EQ(fingerprint(), before);
}

TEST_F(Fingerprint, IsOfTheShardsThatTheIndexNames) {
  const std::string shard = "model-00001-of-00001.safetensors";
  nlohmann::json map;
  for (const std::string& name : SafeTensors::open(folder_.path()).names()) map[name] = shard;
  fs::rename(folder_.path() / "model.safetensors", folder_.path() / shard);
  std::ofstream(folder_.path() / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", map}};
  EXPECT_EQ(SafeTensors::open(folder_.path()).files(),
            std::vector<fs::path>{folder_.path() / shard});
  const std::string before = fingerprint();
  EXPECT_EQ(before, Model::load(TOPKV_SOURCE_DIR "/models/needle-14m").fingerprint());
  folder_.write("model-00002-of-00002.safetensors", "not named");
  EXPECT_EQ(fingerprint(), before);
}

TEST_F(Fingerprint, DependsOnWeightsTokenizerAndConfiguration) {
  const std::string before = fingerprint();
  const auto changed = [&](const char* name, std::streamoff from_end, char to) {
    const fs::path path = folder_.path() / name;
    const fs::path target = fs::read_symlink(path);
    fs::remove(path);
    fs::copy_file(target, path);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-from_end, std::ios::end);
      file.put(to);
    }
    const std::string now = fingerprint();
    fs::remove(path);
    fs::create_symlink(target, path);
    return now;
  };
  EXPECT_NE(changed("model.safetensors", 2, '\x11'), before);
  EXPECT_NE(changed("config.json", 1, ' '), before);
  EXPECT_NE(changed("tokenizer.json", 2, ' '), before);
  EXPECT_NE(changed("chat_template.jinja", 1, ' '), before);
  EXPECT_EQ(fingerprint(), before);
}

/// All files that a conversation is made of, and what is not read is not of it.
TEST_F(Fingerprint, DependsOnWhatTemplatesAreReadFrom) {
  std::string last = fingerprint();
  const auto expect = [&](bool other, const char* name, const std::string& text) {
    folder_.write(name, text);
    const std::string now = fingerprint();
    EXPECT_EQ(now != last, other) << name << " with " << text;
    last = now;
  };
  expect(true, "special_tokens_map.json", R"({"bos_token": "<s>"})");
  expect(true, "special_tokens_map.json", R"({"bos_token": "<t>"})");
  expect(true, "tokenizer_config.json", R"({"eos_token": "</s>"})");
  expect(true, "special_tokens_map.json", R"({"bos_token": "<u>"})");
  expect(true, "tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  expect(false, "special_tokens_map.json", R"({"bos_token": "<v>"})");
  expect(true, "tokenizer_config.json", "{");  // no JSON: whoever chats is told
  fs::create_directory(folder_.path() / "additional_chat_templates");
  expect(false, "additional_chat_templates/tool.jinja", "never asked with");
  expect(true, "additional_chat_templates/default.jinja", "{{ messages }}");
  expect(true, "additional_chat_templates/default.jinja", "{{ messages[0] }}");
  fs::remove(folder_.path() / "chat_template.jinja");  // a link to the model's
  expect(false, "chat_template.jinja", "not read beside that one");
}

}  // namespace
}  // namespace topkv
