// tokenizer.json files that are broken, hostile or of a kind that topkv does not run: each is
// refused in one line that names the file and what is wrong with it.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "src/text/pattern/regex_syntax.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Change = std::function<void(Json& file)>;

Json good_file() {
  std::ifstream file(std::filesystem::path(TOPKV_SOURCE_DIR) /
                     "tests/fixtures/tokenizer/llama3.json");
  return Json::parse(file);
}

Json added(const std::string& content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

class TokenizerFile : public testing::Test {
 protected:
  std::filesystem::path write(const Json& json) const {
    return directory_.write("tokenizer.json", json.dump());
  }

  template <class E>
  void expect_refused(const Change& change, const std::vector<std::string_view>& parts) const {
    Json json = good_file();
    change(json);
    const auto path = write(json);
    SCOPED_TRACE(parts.empty() ? "" : parts.front());
    expect_error<E>([&] { Tokenizer::load(path); }, path.string() + ": ", parts);
  }

  /// A file with one regular expression before ByteLevel.
  static Change with_regex(const std::string& pattern) {
    return [=](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; };
  }

  TempDirectory directory_;
};

TEST_F(TokenizerFile, TextThatIsNoTokenizerIsRefused) {
  const std::string deep(100'000, '[');
  for (const std::string& text : {std::string(), std::string("not JSON"), std::string("{"), deep,
                                  "{\"model\":" + deep, std::string("null"), std::string("[]"),
                                  std::string("7"), std::string("{\"model\":\xFF}")}) {
    const auto path = directory_.write("tokenizer.json", text);
    EXPECT_THROW(Tokenizer::load(path), FileError) << text.substr(0, 50);
    expect_error<FileError>([&] { Tokenizer::load(path); }, path.string(), {});
  }
  const auto missing = directory_.path() / "missing.json";
  expect_error<FileError>([&] { Tokenizer::load(missing); }, missing.string(), {});
  EXPECT_THROW(Tokenizer::load(directory_.path()), FileError);
}

TEST_F(TokenizerFile, PartsOfTheWrongTypeAreRefused) {
  const Json wrong[] = {Json(),
                        Json(true),
                        Json(-1),
                        Json(1.5),
                        Json("text\nline"),
                        Json::array(),
                        Json::array({Json::array()}),
                        Json::object(),
                        Json::object({{"type", 5}}),
                        Json::object({{"type", "Sequence"}})};
  const char* places[] = {"/model",
                          "/model/vocab",
                          "/model/merges",
                          "/model/merges/3",
                          "/model/vocab/!",
                          "/added_tokens",
                          "/added_tokens/0",
                          "/added_tokens/0/id",
                          "/added_tokens/0/content",
                          "/added_tokens/0/lstrip",
                          "/pre_tokenizer",
                          "/pre_tokenizer/pretokenizers",
                          "/pre_tokenizer/pretokenizers/0",
                          "/pre_tokenizer/pretokenizers/0/pattern",
                          "/pre_tokenizer/pretokenizers/0/pattern/Regex",
                          "/pre_tokenizer/pretokenizers/0/behavior",
                          "/normalizer",
                          "/decoder",
                          "/post_processor",
                          "/post_processor/processors",
                          "/post_processor/processors/1/single",
                          "/post_processor/processors/1/single/0",
                          "/post_processor/processors/1/special_tokens"};
  int refused = 0;
  for (const char* place : places) {
    for (const Json& value : wrong) {
      Json json = good_file();
      json[Json::json_pointer(place)] = value;
      const auto path = write(json);
      try {
        // null and empty lists are fine in some places.
        EXPECT_FALSE(Tokenizer::load(path).encode("Hello, world").empty());
      } catch (const Error& error) {  // FileError or Unsupported; anything else fails the test
        ++refused;
        EXPECT_TRUE(std::string_view(error.what()).starts_with(path.string())) << error.what();
        EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      }
    }
  }
  EXPECT_GT(refused, 200);
}

TEST_F(TokenizerFile, BadIdsAreRefused) {
  const auto set_id = [](const Json& id) {
    return [=](Json& f) { f["model"]["vocab"]["!"] = id; };
  };
  expect_refused<FileError>(set_id(-1), {"vocab", "\"!\"", "-1"});
  expect_refused<FileError>(set_id(std::uint64_t{1} << 40), {"vocab", "\"!\""});
  expect_refused<FileError>(set_id(UINT64_MAX), {"vocab", "\"!\""});
  expect_refused<FileError>(set_id(1 << 20), {"vocab", "\"!\""});
  expect_refused<FileError>(set_id(1.0), {"vocab", "\"!\""});
  expect_refused<FileError>(set_id(77), {"vocab", "another token"});
}

TEST_F(TokenizerFile, MergesOfUnknownTokensAreRefused) {
  const auto add_merge = [](const Json& merge) {
    return [=](Json& f) { f["model"]["merges"].push_back(merge); };
  };
  expect_refused<FileError>(add_merge({"!", "no such"}), {"merges[", "no such"});
  expect_refused<FileError>(add_merge({"!", "\n"}), {"merges[", "lacks"});
  expect_refused<FileError>(add_merge("! \""), {"merges[", "lacks"});  // lacks "!\""
  expect_refused<FileError>(add_merge("!"), {"merges[", "two tokens"});
  expect_refused<FileError>(add_merge("! ! !"), {"merges[", "two tokens"});
  expect_refused<FileError>(add_merge({"!", "!", "!"}), {"merges[", "two tokens"});
  expect_refused<FileError>(add_merge(3), {"merges[", "two tokens"});
}

TEST_F(TokenizerFile, AddedTokensThatContradictTheVocabularyAreRefused) {
  const auto add = [](const std::string& content, int id) {
    return [=](Json& f) { f["added_tokens"].push_back(added(content, id)); };
  };
  const int next = static_cast<int>(good_file()["model"]["vocab"].size() + 5);
  expect_refused<FileError>(add("<new>", next + 1), {"<new>", std::to_string(next)});
  expect_refused<FileError>(add("<new>", 3), {"<new>", std::to_string(next)});
  expect_refused<FileError>(add("!", next), {"\"!\"", "expected"});
  expect_refused<FileError>(add("", next), {"content"});
  Json json = good_file();
  json["added_tokens"].push_back(added("<new>", next));
  EXPECT_EQ(Tokenizer::load(write(json)).encode("<new>"), std::vector<Token>{next});
}

TEST_F(TokenizerFile, OtherKindsOfTokenizerAreUnsupported) {
  const auto set = [](const char* place, const Json& value) {
    return [=](Json& f) { f[Json::json_pointer(place)] = value; };
  };
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}};
  expect_refused<Unsupported>(set("/pre_tokenizer", metaspace), {"decoder", "ByteLevel"});
  expect_refused<Unsupported>(set("/pre_tokenizer", nullptr), {"decoder", "ByteLevel"});
  expect_refused<Unsupported>(set("/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
                              {"pre_tokenizer", "BertPreTokenizer"});
  expect_refused<Unsupported>(set("/model/type", "Unigram"), {"model.type", "Unigram"});
  expect_refused<Unsupported>(set("/model/type", "WordPiece"), {"model.type", "WordPiece"});
  expect_refused<Unsupported>(set("/model/dropout", 0.1), {"dropout"});
  expect_refused<Unsupported>(set("/model/end_of_word_suffix", "</w>"), {"end_of_word_suffix"});
  expect_refused<Unsupported>(set("/normalizer", {{"type", "NFKC"}}), {"normalizer", "NFKC"});
  expect_refused<Unsupported>(set("/decoder", metaspace), {"decoder", "Metaspace"});
  expect_refused<Unsupported>(set("/truncation", {{"max_length", 5}}), {"truncation"});
  expect_refused<Unsupported>(set("/post_processor", {{"type", "RobertaProcessing"}}),
                              {"post_processor", "RobertaProcessing"});
  expect_refused<Unsupported>(set("/added_tokens/0/single_word", true), {"single_word"});
  expect_refused<Unsupported>(set("/pre_tokenizer/pretokenizers/0/behavior", "Kept"),
                              {"behavior", "Kept"});
  expect_refused<Unsupported>(
      [](Json& f) {
        for (int i = 0; i < 100; ++i) {
          f["pre_tokenizer"]["pretokenizers"].insert(f["pre_tokenizer"]["pretokenizers"].begin(),
                                                     f["pre_tokenizer"]["pretokenizers"][0]);
        }
      },
      {"at most 32"});
}

TEST_F(TokenizerFile, TemplatesThatNameNothingAreRefused) {
  const auto set = [](const char* place, const Json& value) {
    return
        [=](Json& f) { f["post_processor"]["processors"][1][Json::json_pointer(place)] = value; };
  };
  expect_refused<FileError>(set("/special_tokens", Json::object()), {"<|begin_of_text|>"});
  expect_refused<FileError>(set("/special_tokens/<|begin_of_text|>/ids", {100'000}), {"ids"});
  expect_refused<FileError>(set("/special_tokens/<|begin_of_text|>/ids", {-1}), {"ids"});
  expect_refused<FileError>(set("/single/1/Sequence/id", "B"), {"single[1]"});
  expect_refused<Unsupported>(set("/single", Json::array()), {"single"});
}

TEST_F(TokenizerFile, RegularExpressionsWithAnotherMeaningAreRefused) {
  for (const char* pattern :
       {"\\w+",      "\\bx",        "\\h",   "\\R",   "\\1",     "\\P{L}", "\\p{Han}", "\\pL",
        "a{,3}",     "a{2}+",       "a{2}?", "a{",    "[a[b]]",  "[a&&b]", "[]",       "[a-\\s]",
        "[a-c-e]",   "[z-a]",       "[a",    "(?i)a", "(?<n>a)", "^a",     "a$",       "\\",
        "\\x{D800}", "\\x{110000}", "\\xFF", "\\u12", "\\p{L",   "(?R)",   "\\K"}) {
    expect_refused<Unsupported>(with_regex(pattern), {"regular expression"});
  }
  for (const char* pattern : {"(a", "a)", "*a", "a{3,2}", "(?<=a+)b", "(*UTF)a"}) {
    expect_refused<FileError>(with_regex(pattern), {"does not compile"});
  }
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += '(';
  expect_refused<FileError>(with_regex(nested + "a" + std::string(100'000, ')')), {"compile"});
}

TEST_F(TokenizerFile, RegularExpressionThatTakesTooLongEndsWithAnError) {
  Json json = good_file();
  with_regex("(?:a+)+b|(?:a|aa)+c")(json);
  const auto path = write(json);
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_FALSE(tokenizer.encode("aab aac a").empty());
  expect_error<FileError>([&] { tokenizer.encode(std::string(5000, 'a')); }, path.string() + ": ",
                          {"regular expression", "limit"});
}

TEST_F(TokenizerFile, EmptyMatchesCutBetweenCharacters) {
  Json json = good_file();
  json["model"]["ignore_merges"] = false;
  json["model"]["merges"] = Json::array();
  with_regex("x*")(json);
  const Tokenizer tokenizer = Tokenizer::load(write(json));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("aéxx東b")), "aéxx東b");
}

}  // namespace
}  // namespace topkv
