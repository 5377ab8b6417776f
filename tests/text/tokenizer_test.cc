// The tokenizer against the `tokenizers` library: tests/fixtures/tokenizer holds what the library
// (tools/make_tokenizer_fixtures.py) made of nasty texts.
#include "topkv/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/core/text/utf8.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

const std::filesystem::path root = TOPKV_SOURCE_DIR;

const Json& cases() {
  static const Json all = [] {
    std::ifstream file(root / "tests/fixtures/tokenizer/cases.json");
    return Json::parse(file);
  }();
  return all;
}

std::string all_code_points_before(const std::string& text) {
  std::string out;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    append_utf8(c, out);
    out += text;
  }
  return out;
}

std::string expanded(const Json& text) {
  if (text.is_string()) return text.get<std::string>();
  if (text.contains("all_code_points_before")) {
    return all_code_points_before(text["all_code_points_before"].get<std::string>());
  }
  std::string out;
  for (int i = 0; i < text["times"].get<int>(); ++i) out += text["repeat"].get<std::string>();
  return out;
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made;
    for (const Json& text : cases()["texts"]) made.push_back(expanded(text));
    return made;
  }();
  return all;
}

std::string fnv1a(const std::vector<Token>& ids) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const Token id : ids) hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001B3U;
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(hash));
  return out;
}

class TokenizerStyle : public testing::TestWithParam<int> {
 protected:
  const Json& style() const { return cases()["tokenizers"][static_cast<std::size_t>(GetParam())]; }
  Tokenizer load() const { return Tokenizer::load(root / style()["file"].get<std::string>()); }
};

TEST_P(TokenizerStyle, NastyTextsGetTheIdsOfTheLibrary) {
  const Tokenizer tokenizer = load();
  ASSERT_EQ(style()["encoded"].size(), texts().size());
  for (std::size_t i = 0; i < texts().size(); ++i) {
    const auto ids = tokenizer.encode(texts()[i]);
    const Json& expected = style()["encoded"][i];
    EXPECT_EQ(ids.size(), expected[0].get<std::size_t>()) << texts()[i].substr(0, 200);
    EXPECT_EQ(fnv1a(ids), expected[1].get<std::string>()) << texts()[i].substr(0, 200);
  }
}

TEST_P(TokenizerStyle, SpecialTokensAreAddedAsTheTemplateSays) {
  EXPECT_EQ(load().encode("Hello", true), style()["hello_with_special"].get<std::vector<Token>>());
}

TEST_P(TokenizerStyle, BeginningsAreWhatTheTemplatePutsInFront) {
  const Tokenizer tokenizer = load();
  const auto all = style()["hello_with_special"].get<std::vector<Token>>();
  std::vector<Token> tokens = tokenizer.beginning_tokens();
  const std::vector<Token> hello = tokenizer.encode("Hello");
  tokens.insert(tokens.end(), hello.begin(), hello.end());
  ASSERT_LE(tokens.size(), all.size());
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), all.begin()));
}

TEST_P(TokenizerStyle, IdsDecodeToTheTextOfTheLibrary) {
  const Tokenizer tokenizer = load();
  for (const Json& expected : style()["decoded"]) {
    const auto ids = expected["ids"].get<std::vector<Token>>();
    EXPECT_EQ(tokenizer.decode(ids), expected["text"].get<std::string>());
    std::string bytes;
    for (const Token id : ids) bytes += tokenizer.bytes_of_token(id);
    const auto text = expected["text"].get<std::string>();
    if (replace_invalid_utf8(bytes) == text) continue;
    EXPECT_EQ(style()["file"], "tests/fixtures/tokenizer/pieces.json");  // drops a space in front
    EXPECT_EQ(bytes, " " + text);
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, TokenizerStyle,
                         testing::Range(0, static_cast<int>(cases()["tokenizers"].size())),
                         [](const auto& info) {
                           const auto& style = cases()["tokenizers"][info.param];
                           const std::filesystem::path file =
                               style["file"].template get<std::string>();
                           return file.stem() == "tokenizer" ? "needle" : file.stem().string();
                         });

Tokenizer needle() { return Tokenizer::load(root / "models/needle-14m/tokenizer.json"); }

TEST(Tokenizer, DecodingGivesBackEveryTextWithoutSpecialTokens) {
  const Tokenizer tokenizer = needle();
  for (const std::string& text : texts()) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << text.substr(0, 200);
  }
}

TEST(Tokenizer, SpecialTokensAreFoundAndLeftOutOfDecodedText) {
  const Tokenizer tokenizer = needle();
  EXPECT_EQ(tokenizer.find("<|bos|>"), 0);
  EXPECT_EQ(tokenizer.find("no such token"), -1);
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.encode("<|bos|>").front(), 0);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<|eos|>b")), "ab");
  EXPECT_EQ(tokenizer.bytes_of_token(1), "");
  EXPECT_EQ(tokenizer.content_of_token(0), "<|bos|>");
  const Token the = tokenizer.encode(" The").front();
  EXPECT_EQ(tokenizer.find(tokenizer.content_of_token(the)), the);
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  const Tokenizer tokenizer = needle();
  const std::vector<Token> ids = {-1, 4096, INT32_MAX, INT32_MIN};
  EXPECT_EQ(tokenizer.decode(ids), "");
  EXPECT_EQ(tokenizer.bytes_of_token(-1), "");
  for (const Token id : ids) EXPECT_EQ(tokenizer.content_of_token(id), "");
}

TEST(Tokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const Tokenizer tokenizer = needle();
  // Bytes and what Python's bytes.decode(errors="replace") gives; R stands for U+FFFD.
  const std::pair<std::string, std::string> pairs[] = {
      {"a\x80z", "aRz"},
      {"\xC0\xAF", "RR"},
      {"\xE2\x82z", "Rz"},
      {"\xE2\x82", "R"},
      {"\xED\xA0\x80", "RRR"},
      {"\xF0\x9F\x98", "R"},
      {"\xF0\x80\x80\x80", "RRRR"},
      {"\xF4\x90\x80\x80", "RRRR"},
      {"\xF1\x80\xE1\x80\xC2", "RRR"},
      {"\xFF\xFE", "RR"},
      {"\xE0\x9F\xBF", "RRR"},
      {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
  };
  for (const auto& [bytes, readable] : pairs) {
    std::string expected;
    for (const char c : readable) expected += c == 'R' ? "\xEF\xBF\xBD" : std::string(1, c);
    EXPECT_EQ(replace_invalid_utf8(bytes), expected);
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(expected));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), expected);
  }
}

TEST(Tokenizer, ThreadsThatShareOneGetTheSameIds) {
  const Tokenizer tokenizer = needle();
  const std::string text = texts()[5] + texts()[15] + texts()[20] + std::string(500, 'x');
  const auto expected = tokenizer.encode(text);
  std::vector<std::vector<Token>> got(8);
  std::vector<std::thread> threads;
  for (auto& ids : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) ids = tokenizer.encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, FullWordCacheChangesNoIds) {
  const Tokenizer tokenizer = needle();
  std::string text;
  std::vector<Token> expected;
  for (int i = 0; i < 70'000; ++i) {  // more words than the cache holds
    std::string word = " ";
    for (int rest = i; rest > 0; rest /= 26) word += static_cast<char>('a' + rest % 26);
    text += word;
    const auto ids = tokenizer.encode(word);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
}

TEST(Utf8Stream, PiecesOfAnySizeGiveTheWholeText) {
  const std::string text = "aé東😀\xF0\x9F\x98z\xED\xA0\x80\xE2\x82";
  const std::string expected = replace_invalid_utf8(text);
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string out = stream.push(text.substr(0, first));
      out += stream.push(text.substr(first, second - first));
      out += stream.push(text.substr(second));
      EXPECT_EQ(out + stream.finish(), expected);
      EXPECT_EQ(stream.finish(), "");
    }
  }
}

TEST(Utf8Stream, CharactersComeOutWithTheirLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80"
                        "a\xC3"),
            "😀a");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace topkv
