// Files and texts that are made to take forever. Done the plain way, each of these would take hours
// or more memory than there is; here they end, with the right result.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "src/core/format/json_file.h"
#include "src/core/text/utf8.h"
#include "src/text/pattern/regex.h"
#include "src/text/tokens/added_tokens.h"
#include "src/text/tokens/bpe.h"
#include "src/text/tokens/normalizer.h"
#include "tests/support/long_texts.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

Json added(const std::string& content, std::int64_t id, bool lstrip = false, bool rstrip = false) {
  return {{"id", id},         {"content", content},  {"single_word", false}, {"lstrip", lstrip},
          {"rstrip", rstrip}, {"normalized", false}, {"special", false}};
}

class HostileTokenizer : public testing::Test {
 protected:
  static Json good_file() {
    std::ifstream file(std::filesystem::path(TOPKV_SOURCE_DIR) /
                       "tests/fixtures/tokenizer/llama3.json");
    return Json::parse(file);
  }

  Tokenizer load(const std::function<void(Json& file)>& change) {
    Json json = good_file();
    change(json);
    return Tokenizer::load(directory_.write("tokenizer.json", json.dump()));
  }

  template <class E>
  void expect_refused(const std::function<void(Json& file)>& change,
                      const std::vector<std::string_view>& parts) {
    expect_error<E>([&] { load(change); }, (directory_.path() / "tokenizer.json").string() + ": ",
                    parts);
  }

  static std::function<void(Json& file)> with_regex(const std::string& pattern) {
    return [=](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; };
  }

  TempDirectory directory_;
};

TEST_F(HostileTokenizer, JsonOfMillionsOfObjectsIsReadInOnePass) {
  constexpr std::size_t count = 2'000'000;
  const Json array = parse_json("[" + times(count - 1, "{},") + "{}]", "file");
  EXPECT_EQ(array.size(), count);
  std::string text = "{";
  for (std::size_t i = 0; i < count / 4; ++i) text += "\"" + std::to_string(i) + "\":{},";
  EXPECT_EQ(parse_json(text + "\"x\":[]}", "file").size(), count / 4 + 1);
}

TEST_F(HostileTokenizer, TemplateThatListsManyTokensManyTimesIsRefused) {
  const auto templates = [](std::size_t pieces, std::size_t ids) {
    return [=](Json& f) {
      Json& post = f["post_processor"]["processors"][1];
      post["special_tokens"]["<|begin_of_text|>"]["ids"] = Json(ids, 5);
      Json single = Json(pieces, {{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}});
      single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
      post["single"] = single;
    };
  };
  expect_refused<Unsupported>(templates(30'000, 200'000), {"ids", "at most 1024 tokens"});
  expect_refused<Unsupported>(templates(2, 600), {"ids", "at most 1024 tokens"});
  expect_refused<Unsupported>(
      [&](Json& f) {
        templates(1, 600)(f);
        f["post_processor"]["processors"].push_back(f["post_processor"]["processors"][1]);
      },
      {"single", "at most 1024 tokens"});
  const Tokenizer longest = load(templates(2, 512));
  EXPECT_EQ(longest.encode("Hello", true).size(), 1024 + longest.encode("Hello").size());
}

TEST_F(HostileTokenizer, StrippingTokensOverALongRunOfSpaceAreFoundInOnePass) {
  constexpr std::size_t count = 2'000'000;
  const std::string tabs(count, '\t');
  const auto next = static_cast<std::int64_t>(good_file()["model"]["vocab"].size() + 5);
  for (const auto& [left, right] : {std::pair(true, false), {false, true}, {true, true}}) {
    const Tokenizer tokenizer = load([&, left = left, right = right](Json& f) {
      f["added_tokens"].push_back(added("\t", next, left, right));
    });
    const std::vector<Token> ids = tokenizer.encode("x" + tabs + "x");
    ASSERT_EQ(ids.size(), count + 2);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), next), static_cast<std::ptrdiff_t>(count));
  }
  // One token behind all the space, which it takes.
  const Tokenizer tokenizer =
      load([&](Json& f) { f["added_tokens"].push_back(added("<a>", next, true, true)); });
  EXPECT_EQ(tokenizer.encode("x" + tabs + "<a>" + tabs + "<a>x").size(), 4U);
}

TEST_F(HostileTokenizer, AddedTokensThatNearlyMatchEverywhereAreSoughtInOnePass) {
  const auto next = static_cast<std::int64_t>(good_file()["model"]["vocab"].size() + 5);
  const std::string text(3'000'000, 'a');
  const Tokenizer tokenizer = load([&](Json& f) {
    for (int i = 0; i < 100; ++i) {
      f["added_tokens"].push_back(
          added(std::string(static_cast<std::size_t>(8000 - i), 'a') + "b", next + i));
    }
  });
  EXPECT_EQ(tokenizer.encode(text), load([](Json&) {}).encode(text));
  EXPECT_EQ(tokenizer.encode(std::string(8000, 'a') + "b"), std::vector<Token>{Token(next)});
}

/// The definition: at each place the longest token, leftmost place first.
std::vector<Token> plain_split(const std::vector<std::string>& tokens, std::string_view text) {
  std::vector<Token> out;
  for (std::size_t at = 0; at < text.size();) {
    Token best = -1;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!text.substr(at).starts_with(tokens[i])) continue;
      if (best < 0 || tokens[static_cast<std::size_t>(best)].size() < tokens[i].size()) {
        best = static_cast<Token>(i);
      }
    }
    if (best >= 0) out.push_back(best);
    at += best >= 0 ? tokens[static_cast<std::size_t>(best)].size() : 1;
  }
  return out;
}

TEST(AddedTokens, OverlappingOnesAreFoundLeftmostAndLongest) {
  std::mt19937 random(1);
  const auto word = [&](std::size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> tokens;
    AddedTokens added_tokens;
    for (std::size_t i = 0; i < 1 + random() % 8; ++i) {
      tokens.push_back(word(7));
      added_tokens.add(tokens.back(), static_cast<Token>(i), false, false);
    }
    added_tokens.finish();
    const std::string text = word(60);
    std::vector<Token> got;
    std::string rest;
    added_tokens.split(text, [&](std::string_view part, Token token) {
      if (token >= 0) got.push_back(token);
      rest += part;
    });
    const std::vector<Token> wanted = plain_split(tokens, text);
    ASSERT_EQ(got, wanted) << text;
    std::size_t taken = 0;
    for (const Token token : wanted) taken += tokens[static_cast<std::size_t>(token)].size();
    ASSERT_EQ(rest.size() + taken, text.size());
  }
}

TEST_F(HostileTokenizer, EndlessTokensPatternsAndAddedTextsAreRefused) {
  const std::string wide(10'000, 'x');
  expect_refused<FileError>([&](Json& f) { f["model"]["vocab"][wide] = 9000; },
                            {"model.vocab has a token of 10000 bytes", "at most 8192"});
  expect_refused<FileError>([&](Json& f) { f["added_tokens"].push_back(added(wide, 9000)); },
                            {"added_tokens has a token of 10000 bytes", "at most 8192"});
  expect_refused<Unsupported>(
      [&](Json& f) {
        const auto next = static_cast<std::int64_t>(f["model"]["vocab"].size() + 5);
        for (int i = 0; i < 150; ++i) {
          f["added_tokens"].push_back(added(std::string(8000, 'x') + std::to_string(i), next + i));
        }
      },
      {"added_tokens has more than 1000000 bytes"});
  expect_refused<Unsupported>(with_regex(times(200'000, "\\p{L}")), {"1000000 bytes"});
  expect_refused<Unsupported>(
      [&](Json& f) {
        f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", std::string(300'000, 'x')}};
      },
      {"300000 bytes"});
}

TEST(Bpe, MergesChosenToFallIntoOnePlaceAreFoundAllTheSame) {
  // Of a hash that multiplies by this odd number and folds, all of these have the same low bits.
  constexpr std::uint64_t factor = 0x9E3779B97F4A7C15U;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  ASSERT_EQ(inverse * factor, 1U);
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {  // the byte-level alphabet
    const bool itself =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    static int next = 0x100;
    std::string content;
    append_utf8(static_cast<char32_t>(itself ? byte : next++), content);
    ASSERT_TRUE(vocabulary.add(content, byte));
  }
  Bpe bpe(vocabulary, {});
  constexpr std::uint64_t count = 1'500'000;
  for (std::uint64_t i = 1; i <= count; ++i) {
    const std::uint64_t pair = (i << 32U | (i ^ 0x5A5A5U)) * inverse;
    bpe.add_merge(static_cast<Token>(pair >> 32U), static_cast<Token>(pair), 7);
  }
  bpe.add_merge('a', 'b', 1000);
  bpe.add_merge(1000, 1000, 2000);
  WordCache cache;
  std::vector<Token> out;
  bpe.encode("ababab", cache, out);
  EXPECT_EQ(out, (std::vector<Token>{2000, 1000}));
}

TEST_F(HostileTokenizer, OneEndlessWordIsMergedInOrder) {
  const Tokenizer tokenizer = load(with_regex("\\p{L}+"));
  const std::string word = times(500'000, "thethe");
  const std::vector<Token> ids = tokenizer.encode(word);
  EXPECT_EQ(tokenizer.decode(ids), word);
  EXPECT_LE(ids.size(), word.size() / 2);
}

TEST_F(HostileTokenizer, MarksInTheWrongOrderAreSortedNotSwapped) {
  const Tokenizer tokenizer = load([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; });
  constexpr std::size_t count = 1'000'000;  // pairs; the dot below goes before the acute
  const std::string text = "a" + times(count, "\u0301\u0323");
  const std::string sorted = "a" + times(count, "\u0323") + times(count, "\u0301");
  const std::vector<Token> ids = tokenizer.encode(text);
  EXPECT_EQ(ids, tokenizer.encode(sorted));
  EXPECT_EQ(tokenizer.decode(ids), "\u1ea1" + times(count - 1, "\u0323") + times(count, "\u0301"));
}

TEST_F(HostileTokenizer, PatternsThatBacktrackWithoutEndAreStoppedEverywhere) {
  const std::string text(100'000, 'a');
  for (const char* pattern : {"a+[bc]|a",            // to the end of the text from every place
                              "(?=a*[bc])a|a",       // likewise, looking ahead
                              "a*?[bc]|a",           //
                              "(?<=a)a*a*a*[bc]|.",  // every way to cut it in three
                              "(?:(?=a*)a)+[bc]|a",  //
                              "(?:a+)+[bc]|a",       // every way to cut it
                              "(?:a|aa)+[bc]", "(?:a*)*[bc]", "(?>a*)[bc]|a"}) {
    SCOPED_TRACE(pattern);
    const Tokenizer tokenizer = load(with_regex(pattern));
    expect_error<FileError>([&] { tokenizer.encode(text); },
                            (directory_.path() / "tokenizer.json").string() + ": ",
                            {"regular expression", "limit"});
    EXPECT_FALSE(tokenizer.encode("aab aac a").empty());
  }
}

TEST_F(HostileTokenizer, LongRunsOfAnyKindAreCutAsShortOnes) {
  // The patterns of tokenizers that there are, each run far longer than any of them looks ahead.
  const Json original = good_file();
  for (
      const char* pattern :
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}) {
    SCOPED_TRACE(pattern);
    const Tokenizer tokenizer = load(with_regex(pattern));
    for (const char* unit :
         {"a", "A", "aA", " ", "\t", "\n", " \n", "1", "!", "a ", "\u6771", "a\u0301", "'s"}) {
      const std::string text = "x " + times(100'000, unit) + "x";
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << unit;
    }
  }
}

}  // namespace
}  // namespace topkv
