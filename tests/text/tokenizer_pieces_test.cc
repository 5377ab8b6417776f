// Tokenizers whose vocabulary is spelled in pieces, by hand: Unigram, BPE with an unknown token,
// decoders, and files and texts that are made to go wrong. What the `tokenizers` library makes of
// many more is compared in bindings/tests/test_tokenizers.py.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "src/core/format/serde_number.h"
#include "src/text/tokens/charsmap.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<Token>;

Json metaspace(const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}};
}

Json unigram() {
  Json vocab = Json::array();
  const auto add = [&](const char* piece, double score) {
    vocab.push_back(Json::array({piece, score}));
  };
  add("<unk>", 0);
  add("▁", -1);
  add("a", -2);
  add("b", -3);
  add("ab", -4.5);
  add("▁a", -2.5);
  add("aba", -7.25);
  add("é", -2);
  return {{"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", metaspace("always")},
          {"decoder", metaspace("always")},
          {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}};
}

Json added_token(const char* content, int id, bool special = false) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

class Pieces : public testing::Test {
 protected:
  Tokenizer load(const Json& json) const {
    return Tokenizer::load(directory_.write("tokenizer.json", json.dump()));
  }

  template <class E>
  void expect_refused(const std::function<void(Json& file)>& change,
                      const std::vector<std::string_view>& parts) const {
    Json json = unigram();
    change(json);
    const auto path = directory_.write("tokenizer.json", json.dump());
    expect_error<E>([&] { Tokenizer::load(path); }, path.string() + ": ", parts);
  }

  TempDirectory directory_;
};

std::string repeated(std::size_t count, std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST_F(Pieces, BestCutWinsAndTheLongestLastPieceAmongEqualOnes) {
  const Tokenizer tokenizer = load(unigram());
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{1, 4}));  // -1 - 4.5 = -2.5 - 3: the longest last
  EXPECT_EQ(tokenizer.encode("b ab"), (Ids{1, 3, 1, 4}));
  EXPECT_EQ(tokenizer.encode("ba"), (Ids{1, 3, 2}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.encode(" "), Ids{1});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab  é b")), "ab  é b");
}

TEST_F(Pieces, APieceThatIsThereTwiceIsTheLastOne) {
  // transformers 5.17 saves the tokenizer of a Gemma's GGUF file with the tab twice.
  Json json = unigram();
  json["model"]["vocab"].push_back(Json::array({"a", -30}));
  json["model"]["vocab"].push_back(Json::array({"b", -3}));
  json["added_tokens"] = {added_token("<new>", 10), added_token("b", 9, true)};
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.encode("aé"), (Ids{5, 7}));
  EXPECT_EQ(tokenizer.encode("éa"), (Ids{1, 7, 8}));
  EXPECT_EQ(tokenizer.encode("é<new>"), (Ids{1, 7, 10}));
  EXPECT_EQ(tokenizer.find("a"), 8);
  EXPECT_EQ(tokenizer.decode(Ids{1, 7, 2, 8}), "éaa");
  EXPECT_EQ(tokenizer.decode(Ids{7, 3, 9, 7}), "éé");  // both are special
  EXPECT_EQ(tokenizer.bytes_of_token(3) + tokenizer.bytes_of_token(9), "");
}

TEST_F(Pieces, UnknownCharactersNextToEachOtherAreOneToken) {
  const Tokenizer tokenizer = load(unigram());
  EXPECT_EQ(tokenizer.encode("x"), (Ids{1, 0}));
  EXPECT_EQ(tokenizer.encode("xyza<unk>東z"), (Ids{1, 0, 2, 0}));
}

TEST_F(Pieces, BytesStandForUnknownCharactersWhereThereAreAll) {
  Json json = unigram();
  json["model"]["byte_fallback"] = true;
  json["model"]["vocab"].push_back(Json::array({"<0xC3>", -20}));
  json["model"]["vocab"].push_back(Json::array({"<0xA8>", -20}));
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({{{"type", "ByteFallback"}}, metaspace("always")})}};
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.encode("aèx"), (Ids{5, 0}));  // x has no byte
  EXPECT_EQ(tokenizer.encode("aè"), (Ids{5, 8, 9}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 8, 9}), "aè");
  EXPECT_EQ(tokenizer.decode(Ids{5, 8, 2, 9, 9}), "a�a��");  // one for each byte
  Utf8Stream stream;
  EXPECT_EQ(stream.push(tokenizer.bytes_of_token(8)), "");
  EXPECT_EQ(stream.push(tokenizer.bytes_of_token(9)), "è");
}

/// Of bytes: three letters, a space, the two bytes of "é", and no others.
Json few_bytes() {
  return {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"Ã", 3}, {"©", 4}, {"Ġ", 5}, {"<unk>", 6}}},
        {"merges", {"a b"}}}}};
}

TEST_F(Pieces, BytesWithoutATokenAreLeftOutAndToldOnce) {
  std::vector<std::string> told;
  const auto path = directory_.write("tokenizer.json", few_bytes().dump());
  const Tokenizer tokenizer =
      Tokenizer::load(path, [&](const std::string& warning) { told.push_back(warning); });
  // What is left stands side by side, and is merged so.
  for (int round = 0; round < 2; ++round) EXPECT_EQ(tokenizer.encode("ab é"), (Ids{2, 5, 3, 4}));
  EXPECT_EQ(tokenizer.left_out("ab é"), "");
  EXPECT_TRUE(told.empty());
  const auto line = [&](std::string_view found) {
    return "the vocabulary has no token for " + std::string(found);
  };
  const std::string two = line("3 bytes of the text, left out: 0x04 (2), 0xa8 (1)");
  EXPECT_EQ(tokenizer.left_out("a\x04\x04"
                               "bè"),
            two);
  EXPECT_TRUE(told.empty());  // asking is no loss
  EXPECT_EQ(tokenizer.encode("a\x04\x04"
                             "bè"),
            (Ids{2, 3}));
  EXPECT_EQ(told, std::vector<std::string>{path.string() + ": " + two +
                                           "; later texts lose such bytes without a warning"});
  EXPECT_EQ(tokenizer.decode(Ids{2, 3}), "ab�");
  EXPECT_EQ(tokenizer.encode("\x04"), Ids{});
  EXPECT_EQ(tokenizer.encode("xx"
                             "a\x04"),
            Ids{0});
  EXPECT_EQ(tokenizer.encode(repeated(64, "x")), Ids{});
  EXPECT_EQ(tokenizer.encode(repeated(65, "x")), Ids{});
  EXPECT_EQ(tokenizer.encode(repeated(70, "x") + "ab" + repeated(3, "è")), (Ids{2, 3, 3, 3}));
  EXPECT_EQ(tokenizer.left_out("x"), line("1 byte of the text, left out: 0x78 (1)"));
  // Each time, also of a word that was met before in the same text.
  EXPECT_EQ(tokenizer.left_out(repeated(3, "a x")),
            line("3 bytes of the text, left out: 0x78 (3)"));
  EXPECT_EQ(
      tokenizer.left_out("0123456789"),
      line("10 bytes of the text, left out: 0x30 (1), 0x31 (1), 0x32 (1), 0x33 (1), 0x34 (1), "
           "0x35 (1), 0x36 (1), 0x37 (1) and 2 more"));
  EXPECT_EQ(told.size(), 1U);
  EXPECT_EQ(load(few_bytes()).encode("\x04"), Ids{});  // nobody to tell
}

TEST_F(Pieces, AWarningThatThrowsEndsTheEncoding) {
  const auto path = directory_.write("tokenizer.json", few_bytes().dump());
  const Tokenizer tokenizer =
      Tokenizer::load(path, [](const std::string&) { throw std::runtime_error("no losses"); });
  EXPECT_THROW(tokenizer.encode("x"), std::runtime_error);
  EXPECT_EQ(tokenizer.encode("xa"), Ids{0});
}

TEST_F(Pieces, OneOfManyThreadsTellsWhatIsLeftOut) {
  std::atomic<int> told = 0;
  const auto path = directory_.write("tokenizer.json", few_bytes().dump());
  const Tokenizer tokenizer = Tokenizer::load(path, [&](const std::string&) { ++told; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { tokenizer.encode("ax"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told, 1);
}

TEST_F(Pieces, AnUnknownTokenStandsForBytesWithoutOne) {
  Json json = few_bytes();
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(load(json).encode("ab \x04\x04 xa"), (Ids{2, 5, 6, 6, 5, 6, 0}));
  EXPECT_EQ(load(json).encode("è\x04"), (Ids{3, 6, 6}));
  EXPECT_EQ(load(json).left_out("è\x04"), "");
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(load(json).encode("ab \x04\x04 xa"), (Ids{2, 5, 6, 5, 6, 0}));
  EXPECT_EQ(load(json).encode("è\x04"), (Ids{3, 6}));
  json["model"]["byte_fallback"] = true;  // to which no byte of such a vocabulary falls back
  EXPECT_EQ(load(json).encode("è\x04"), (Ids{3, 6}));
}

TEST_F(Pieces, BytesAreReadBehindOtherStepsOfADecoder) {
  // As transformers 5.17 saves the tokenizer of a GGUF file.
  Json json = few_bytes();
  const Json mark = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, mark, {{"type", "ByteLevel"}}}}};
  const Tokenizer tokenizer = load(json);
  const Ids ids = {2, 5, 3, 4, 3};
  EXPECT_EQ(tokenizer.encode("ab éè"), ids);
  EXPECT_EQ(tokenizer.decode(ids), "ab é�");
  std::string bytes;
  for (const Token id : ids) bytes += tokenizer.bytes_of_token(id);
  EXPECT_EQ(bytes, "ab é\xC3");
  // With a ByteLevel pre_tokenizer something reads bytes, once.
  json["decoder"]["decoders"].erase(3);
  const auto refused = [&] { load(json); };
  const std::string file = (directory_.path() / "tokenizer.json").string();
  expect_error<Unsupported>(refused, file + ": ", {"decoder.type", "ByteLevel, or a Sequence"});
  json["decoder"]["decoders"] = {{{"type", "ByteLevel"}}, {{"type", "ByteLevel"}}};
  expect_error<Unsupported>(refused, file + ": ", {"decoder.type", "ByteLevel, or a Sequence"});
}

TEST_F(Pieces, StepsBehindFuseReadTheTokensOfAStream) {
  Json json = unigram();
  const Json mark = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, mark, strip}}};
  const Tokenizer tokenizer = load(json);
  const Ids ids = tokenizer.encode("ab ab");
  EXPECT_EQ(tokenizer.decode(ids), "ab ab");
  std::string bytes;
  for (const Token id : ids) bytes += tokenizer.bytes_of_token(id);
  EXPECT_EQ(bytes, " ab ab");
}

TEST_F(Pieces, AWordThatIsATokenAsAWholeLosesNothing) {
  Json json = few_bytes();
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["aĄ"] = 7;
  const Tokenizer tokenizer = load(json);
  EXPECT_EQ(tokenizer.encode("a\x04"), Ids{7});
  EXPECT_EQ(tokenizer.left_out("a\x04"), "");
  EXPECT_NE(tokenizer.left_out("aa\x04"), "");
}

TEST_F(Pieces, CharactersThatAreNoPieceAreLeftOutWhereNothingStandsForThem) {
  Json json = few_bytes();
  json["pre_tokenizer"] = metaspace("never");
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({{{"type", "ByteFallback"}}, metaspace("never")})}};
  json["model"]["vocab"] = {{"a", 0},      {"b", 1},      {"ab", 2}, {"▁", 3},
                            {"<0xC3>", 4}, {"<0xA8>", 5}, {"é", 6}};
  EXPECT_EQ(load(json).encode("aèb"), Ids{2});
  EXPECT_EQ(load(json).encode("é東"), Ids{6});
  EXPECT_NE(load(json).left_out("é東").find(
                "3 bytes of the text, left out: 0x9d (1), 0xb1 (1), 0xe6 (1)"),
            std::string::npos);
  json["model"]["byte_fallback"] = true;
  EXPECT_EQ(load(json).encode("aèb"), (Ids{0, 4, 5, 1}));
  EXPECT_EQ(load(json).encode("a東b"), Ids{2});
  EXPECT_EQ(load(json).left_out("aèb"), "");
}

TEST_F(Pieces, MarksInFrontAreAsTheSchemeSays) {
  Json json = unigram();
  json["added_tokens"] = {added_token("a", 2)};
  EXPECT_EQ(load(json).encode("bab"), (Ids{1, 3, 2, 1, 3}));
  json["pre_tokenizer"] = metaspace("first");
  EXPECT_EQ(load(json).encode("bab"), (Ids{1, 3, 2, 3}));
  EXPECT_EQ(load(json).encode("ab"), (Ids{2, 3}));
  json["pre_tokenizer"] = metaspace("never");
  EXPECT_EQ(load(json).encode("bab"), (Ids{3, 2, 3}));
}

TEST_F(Pieces, PartsThatAreNotRunAreRefusedByName) {
  const auto set = [](const char* place, const Json& value) {
    return [=](Json& f) { f[Json::json_pointer(place)] = value; };
  };
  expect_refused<Unsupported>(set("/model/unk_id", nullptr), {"model.unk_id"});
  expect_refused<FileError>(set("/model/unk_id", 8), {"model.unk_id", "0 to 7"});
  expect_refused<FileError>(set("/model/vocab", Json::object()), {"model.vocab"});
  expect_refused<FileError>(set("/model/vocab/2", Json::array({"a"})), {"model.vocab[2]"});
  expect_refused<FileError>(set("/model/vocab/2", Json::array({"a", "b"})), {"model.vocab[2]"});
  expect_refused<Unsupported>(set("/model/vocab/2", Json::array({std::string(1025, 'a'), -1})),
                              {"1025 bytes"});
  expect_refused<Unsupported>(set("/decoder", nullptr), {"decoder"});
  expect_refused<Unsupported>(set("/decoder", {{"type", "WordPiece"}}), {"decoder", "WordPiece"});
  expect_refused<Unsupported>(
      set("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}),
      {"decoder", "Fuse"});
  expect_refused<Unsupported>(set("/pre_tokenizer/prepend_scheme", "last"), {"prepend_scheme"});
  expect_refused<FileError>(set("/pre_tokenizer/replacement", "ab"), {"one character"});
  expect_refused<FileError>(set("/pre_tokenizer/add_prefix_space", false), {"add_prefix_space"});
  expect_refused<Unsupported>(set("/normalizer", {{"type", "Lowercase"}}), {"Lowercase"});
  const auto mapped = [&](const std::string& base64) {
    return set("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64}});
  };
  expect_refused<FileError>(mapped("AAA"), {"normalizer", "base64"});
  expect_refused<FileError>(mapped("AA!="), {"normalizer", "base64"});
  expect_refused<FileError>(mapped("AAAA"), {"less than 4 bytes"});
  expect_refused<FileError>(mapped("AAAAAA=="), {"empty trie"});
  expect_refused<FileError>(mapped("BAAAAA=="), {"shorter than its trie"});
  expect_refused<FileError>(mapped("BAAAAAAAAAA="), {"points outside of its trie"});
}

TEST_F(Pieces, EndlessTextTakesOnePass) {
  constexpr std::size_t count = 200'000;
  Json json = unigram();
  json["model"]["vocab"].push_back(Json::array({std::string(1024, 'a'), -1}));
  const Ids ids = load(json).encode(std::string(count, 'a'));
  EXPECT_LT(ids.size(), count / 1024 + 1024);
  const std::string unknown = repeated(count, "東");
  EXPECT_EQ(load(unigram()).encode(unknown), (Ids{1, 0}));
  EXPECT_EQ(load(unigram()).encode(std::string(count, ' ')), Ids(count, 1));
}

TEST(SerdeNumber, IsTheDigitsAsAnIntegerTimesAPowerOfTen) {
  EXPECT_EQ(serde_number("-0.5", -0.5), -0.5);
  EXPECT_EQ(serde_number("1e3", 1000), 1000);
  EXPECT_EQ(serde_number("12.50E-2", 0.125), 0.125);
  // What serde_json 1 gives, which is not the nearest double.
  EXPECT_EQ(serde_number("-0.43561181362301915", -0.43561181362301915), -0.4356118136230191);
  EXPECT_EQ(serde_number("-9.634415443986683", -9.634415443986683), -9.634415443986684);
  EXPECT_EQ(serde_number("1e400", 7), 7);
  EXPECT_EQ(serde_number("1e-400", 0), 0);
}

}  // namespace
}  // namespace topkv
