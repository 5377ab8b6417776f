// Files of a model's directory that chat templates and special tokens are read from: nothing but
// regular files of the size that is taken, and special tokens within limits.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_directory.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string rendered(const TempDirectory& work) {
  const std::vector<ChatMessage> messages = {{"user", ""}};
  return ChatTemplate::load(work.path()).render(messages, true);
}

TEST(ChatTemplateFiles, NothingIsReadButARegularFileOfTheSizeThatIsTaken) {
  for (const char* name : {"chat_template.jinja", "additional_chat_templates/default.jinja"}) {
    const TempDirectory work;
    const fs::path file = work.path() / name;
    fs::create_directories(file.parent_path());
    const auto expect = [&](std::initializer_list<std::string_view> parts) {
      expect_error<FileError>([&] { ChatTemplate::load(work.path()); }, file.string() + ": ",
                              parts);
      fs::remove(file);
    };
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    expect({"is not a regular file"});
    fs::create_symlink("/dev/zero", file);
    expect({"is not a regular file"});
    fs::create_directory(file);
    expect({"is not a regular file"});
    work.write(name, "x");
    fs::resize_file(file, 100'000'000'000);
    expect({"has 100000000000 bytes", "at most 262144"});
    work.write(name, std::string(262'145, 'x'));
    expect({"has 262145 bytes", "at most 262144"});
    work.write(name, std::string(262'144, 'x'));
    EXPECT_EQ(rendered(work).size(), 262'144U);
    fs::rename(file, work.path() / "elsewhere");
    fs::create_symlink(work.path() / "elsewhere", file);  // as in the cache of Hugging Face
    EXPECT_EQ(rendered(work).size(), 262'144U);
  }
}

/// So many special tokens, with one behind them in the alphabet.
Json named(int count, const std::string& text) {
  Json config = {{"chat_template", "{{ x1_token }}"}, {"z_token", "z"}};
  for (int i = 1; i < count; ++i) config["x" + std::to_string(i) + "_token"] = text;
  return config;
}

TEST(ChatTemplateFiles, SpecialTokensAreLimitedInNumberAndLength) {
  const TempDirectory work;
  const fs::path file = work.path() / "tokenizer_config.json";
  const auto expect = [&](const Json& config, std::initializer_list<std::string_view> parts) {
    work.write("tokenizer_config.json", config.dump());
    expect_error<FileError>([&] { ChatTemplate::load(work.path()); }, file.string() + ": ", parts);
  };
  work.write("tokenizer_config.json", named(1024, std::string(8192, 'y')).dump());
  EXPECT_EQ(rendered(work), std::string(8192, 'y'));
  expect(named(1025, "y"), {"more than 1024 special tokens", "z_token", "at most 1024"});
  expect(named(2, std::string(8193, 'y')), {"x1_token", "8193 bytes in its text", "at most 8192"});
  Json config = named(2, "y");
  config["extra_special_tokens"] = {{std::string(8193, 'n'), "y"}};
  expect(config, {"8193 bytes in its name", "at most 8192"});
  config = named(2, "y");
  config["extra_special_tokens"] = Json::object();
  for (int i = 0; i < 1023; ++i) config["extra_special_tokens"]["e" + std::to_string(i)] = "y";
  expect(config, {"more than 1024 special tokens"});
}

TEST(ChatTemplateFiles, TheLastFileThatNamesASpecialTokenDecides) {
  const TempDirectory work;
  Json config = {{"chat_template", "{{ a_token }}{{ b_token }}{{ bos_token }}{{ e }}"},
                 {"a_token", "1"},
                 {"b_token", "2"},
                 {"bos_token", {{"content", "3"}}},
                 {"extra_special_tokens", {{"b_token", "4"}, {"e", "5"}}}};
  work.write("tokenizer_config.json", config.dump());
  EXPECT_EQ(rendered(work), "1435");
  work.write("special_tokens_map.json", R"({"a_token": "6", "bos_token": "7"})");
  EXPECT_EQ(rendered(work), "6475");
  Json map = named(1025, "y");
  work.write("special_tokens_map.json", map.dump());
  expect_error<FileError>([&] { ChatTemplate::load(work.path()); },
                          (work.path() / "special_tokens_map.json").string() + ": ",
                          {"more than 1024 special tokens"});
}

// What the template is given counts, be it messages or special tokens.
TEST(ChatTemplateFiles, ATemplateMayTakeMoreForLongSpecialTokens) {
  const TempDirectory work;
  Json config = named(200, std::string(8192, 'y'));
  config["chat_template"] =
      "{% for i in range(100000) %}{% if i and i and i and i and i and i and i and i %}{{ i * i + "
      "i * i + i * i + i }}{% endif "
      "%}{% endfor %}";
  work.write("tokenizer_config.json", config.dump());
  EXPECT_NO_THROW(rendered(work));
  config = named(200, "y");
  config["chat_template"] =
      "{% for i in range(100000) %}{% if i and i and i and i and i and i and i and i %}{{ i * i + "
      "i * i + i * i + i }}{% endif "
      "%}{% endfor %}";
  work.write("tokenizer_config.json", config.dump());
  expect_error<FileError>([&] { rendered(work); }, "", {"too many steps"});
}

// Converters have written Gemma's <start_of_turn> as plain text: no text becomes it then.
TEST(ChatTemplateFiles, AMarkThatAGgufFileCallsPlainTextIsRefused) {
  const TempDirectory work;
  gguf::File file;
  file.set(
      gguf::words("tokenizer.chat_template",
                  "{% for m in messages %}<turn>{{ m['role'] }}<b>{{ m.content }}{% endfor %}"));
  // "<b>" is made up by "<b" and ">", as a vocabulary's own pieces are.
  file.set(gguf::texts("tokenizer.ggml.tokens", {"<turn>", "<b>", "<b", ">", "<unseen>"}));
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  const auto render = [&](const std::vector<std::int32_t>& types) {
    file.set(gguf::integers("tokenizer.ggml.token_type", types));
    return ChatTemplate::load(work.write("model.gguf", file.content())).render(messages, true);
  };
  for (const std::int32_t type : {3, 4}) EXPECT_EQ(render({type, 1, 1, 1, 1}), "<turn>user<b>x");
  expect_error<FileError>(
      [&] {
        render({1, 1, 1, 1, 1});
      },
      (work.path() / "model.gguf").string() + ": ",
      {"token_type[0] is 1 (plain text) for \"<turn>\"", "expected 3 or 4"});
}

}  // namespace
}  // namespace topkv
