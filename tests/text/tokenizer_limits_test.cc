// Files of a few lines that would make gigabytes of a token, of a text of a few bytes or of their
// vocabulary: each is refused, and what tokenizers need is not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/core/text/utf8.h"
#include "src/text/tokens/byte_allowance.h"
#include "tests/support/long_texts.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<Token>;

/// A token for each byte, with its value as the id, "a" and SentencePiece's space; an added "<s>".
Json pieces() {
  Json vocab = {{"a", 256}, {"▁", 257}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
  const Json added = {{"id", 258},       {"content", "<s>"}, {"single_word", false},
                      {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                      {"special", true}};
  return {
      {"added_tokens", Json::array({added})},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"}, {"byte_fallback", true}, {"merges", Json::array()}, {"vocab", vocab}}}};
}

Json replace(const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

Json split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json metaspace(char32_t mark, bool cuts) {
  std::string replacement;
  append_utf8(mark, replacement);
  return {{"type", "Metaspace"},
          {"replacement", replacement},
          {"prepend_scheme", "always"},
          {"split", cuts}};
}

Json normalizers(const Json& list) { return {{"type", "Sequence"}, {"normalizers", list}}; }
Json pre_tokenizers(const Json& list) { return {{"type", "Sequence"}, {"pretokenizers", list}}; }
Json decoders(const Json& list) { return {{"type", "Sequence"}, {"decoders", list}}; }

std::string base64(std::string_view bytes) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  unsigned held = 0;
  for (const char c : bytes) {
    bits = bits << 8U | static_cast<unsigned char>(c);
    for (held += 8; held >= 6;) out += alphabet[bits >> (held -= 6) & 63U];
  }
  if (held > 0) out += alphabet[bits << (6 - held) & 63U];
  out.append((4 - out.size() % 4) % 4, '=');
  return out;
}

/// SentencePiece's map with one entry: "a" becomes the text.
Json charsmap(std::string_view text) {
  std::vector<std::uint32_t> units(512, 0);
  units[0] = 256U << 10U;                                    // its children are around 256
  units[256 ^ 'a'] = std::uint32_t{'a'} << 10U | 256 | 'a';  // its value is at 256
  std::string bytes;
  const auto put = [&](std::uint32_t value) {
    for (unsigned shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  };
  put(static_cast<std::uint32_t>(4 * units.size()));
  for (const std::uint32_t unit : units) put(unit);
  bytes += text;
  bytes += '\0';
  return {{"type", "Precompiled"}, {"precompiled_charsmap", base64(bytes)}};
}

class TokenizerLimits : public testing::Test {
 protected:
  static Json with(const char* key, const Json& value) {
    Json json = pieces();
    json[key] = value;
    return json;
  }

  Tokenizer load(const Json& json) const {
    return Tokenizer::load(directory_.write("tokenizer.json", json.dump()));
  }

  template <class E>
  void expect_no_file(const Json& json, const std::vector<std::string_view>& parts) const {
    const auto path = directory_.write("tokenizer.json", json.dump());
    expect_error<E>([&] { Tokenizer::load(path); }, path.string() + ": ", parts);
  }

  void expect_no_ids(const Json& json, const std::string& text) const {
    const Tokenizer tokenizer = load(json);
    expect_error<FileError>(
        [&] { tokenizer.encode(text); }, (directory_.path() / "tokenizer.json").string() + ": ",
        {"normalizer and pre_tokenizer make more than",
         fmt::format("of a text of {}; expected at most 64 for each byte", text.size())});
  }

  TempDirectory directory_;
};

TEST_F(TokenizerLimits, DecodersMakeATokenFourTimesAsLongInAllStepsTogether) {
  const auto steps = [](std::size_t count, const std::string& content) {
    return with("decoder", decoders(Json(count, replace("a", content))));
  };
  EXPECT_EQ(load(steps(1, "aaaa")).decode(Ids{256, 256}), "aaaaaaaa");
  EXPECT_EQ(load(steps(2, "aa")).bytes_of_token(256), "aaaa");
  EXPECT_EQ(load(steps(32, "b")).decode(Ids{256}), "b");
  expect_no_file<Unsupported>(steps(2, "aaaa"),
                              {"decoder.decoders[1].content is \"aaaa\"", "at most four times"});
  expect_no_file<Unsupported>(steps(32, "aaaa"), {"decoder.decoders[1].content", "together"});
  Json behind = Json(2, replace("a", "aaaa"));
  behind.insert(behind.begin(), Json{{"type", "Fuse"}});
  expect_no_file<Unsupported>(with("decoder", decoders(behind)), {"decoder.decoders[2].content"});
}

TEST_F(TokenizerLimits, PreTokenizersThatDoubleThePiecesAreStopped) {
  const auto pairs = [](std::size_t count) {
    Json stages = Json::array();
    for (std::size_t i = 0; i < count; ++i) {
      stages.push_back(split("."));
      stages.push_back(metaspace(static_cast<char32_t>(0x400 + i), false));
    }
    return with("pre_tokenizer", pre_tokenizers(stages));
  };
  EXPECT_EQ(load(pairs(1)).encode("a"), (Ids{0xD0, 0x80, 256}));
  EXPECT_EQ(load(pairs(2)).encode("a"), (Ids{0xD0, 0x81, 0xD0, 0x80, 0xD0, 0x81, 256}));
  expect_no_ids(pairs(16), "x");
}

TEST_F(TokenizerLimits, NormalizersThatGrowATextAndShrinkItAreStopped) {
  const std::string wide(8192, 'a');
  const Json grows =
      normalizers({replace("a", wide), replace("a", wide), replace(wide, "a"), replace(wide, "a")});
  expect_no_ids(with("normalizer", grows), "a<s>");
  // One growth alone is within the limit a few times: the parts of a text are added up.
  const Tokenizer tokenizer = load(with("normalizer", replace("a", wide)));
  EXPECT_EQ(tokenizer.encode("a<s>a<s>a<s>").size(), 3 * 8193U);
  expect_no_ids(with("normalizer", replace("a", wide)), times(100, "a<s>"));
}

TEST_F(TokenizerLimits, AddedTokensThatTheNormalizerGrowsAreStoppedTogether) {
  const std::string wide(8192, 'a');
  Json json =
      with("normalizer", normalizers({replace("a", wide), replace(wide, "a"), replace("a", "")}));
  for (int i = 0; i < 100; ++i) {
    json["added_tokens"].push_back(json["added_tokens"][0]);
    json["added_tokens"].back().update({{"id", 259 + i},
                                        {"content", std::string(100, 'a') + std::to_string(i)},
                                        {"normalized", true}});
  }
  expect_no_file<FileError>(json, {"make more than", "of a text of 1000000"});
}

TEST_F(TokenizerLimits, OutputsOfEveryKindOfStepCount) {
  const auto chain = [](const Json& list) { return with("normalizer", normalizers(list)); };
  const Json wide_prefix = {{"type", "Prepend"}, {"prepend", std::string(8192, 'a')}};
  expect_no_ids(chain(Json(9, wide_prefix)), "x");
  // A note that NFC writes as two characters.
  expect_no_ids(chain(Json(32, {{"type", "NFC"}})), times(1000, "\U0001D160"));
  Json behind_matches = Json(31, replace("b", "c"));  // there is no b: all is behind the last one
  behind_matches.insert(behind_matches.begin(), replace("a", "aaaa"));
  expect_no_ids(chain(behind_matches), std::string(2000, 'a'));
  expect_no_ids(with("normalizer", charsmap(std::string(200, 'b'))), std::string(1000, 'a'));
  Json stages = {split("aa"), split("a")};
  for (char32_t mark = 0x400; mark < 0x41E; ++mark) stages.push_back(metaspace(mark, false));
  expect_no_ids(with("pre_tokenizer", pre_tokenizers(stages)), std::string(1000, 'a'));
}

TEST_F(TokenizerLimits, WhatTokenizersMakeOfTheirWorstTextsIsWithinThem) {
  constexpr std::size_t count = 100'000;
  const std::string spaces(count, ' ');
  const Json llama =
      with("normalizer", normalizers({{{"type", "Prepend"}, {"prepend", "▁"}}, replace(" ", "▁")}));
  EXPECT_EQ(load(llama).encode(spaces), Ids(count + 1, 257));
  // NFKC of U+FDFA has 33 bytes for three; this map has as many for each.
  Json t5 = with("normalizer", normalizers({charsmap("bb b bbbb "), replace("  ", " ")}));
  t5["pre_tokenizer"] = pre_tokenizers({{{"type", "WhitespaceSplit"}}, metaspace(U'▁', true)});
  EXPECT_EQ(load(t5).encode(std::string(count, 'a')).size(), 10 * count);
  EXPECT_EQ(load(t5).encode(times(count, "b ")).size(), 2 * count);
}

TEST(ByteAllowance, TextsHave32BitPlacesHoweverLongTheFirstOneIs) {
  ByteAllowance allowance(std::size_t{1} << 30U);
  allowance.take(ByteAllowance::longest_text);
  EXPECT_EQ(ByteAllowance::longest_text, std::size_t{INT32_MAX});
  expect_error<FileError>([&] { allowance.check(std::size_t{1} << 31U); }, "normalizer",
                          {"a text of 2147483648 bytes", "at most 2147483647"});
  for (int i = 1; i < 32; ++i) allowance.take(ByteAllowance::longest_text);
  expect_error<FileError>([&] { allowance.take(ByteAllowance::longest_text); }, "normalizer",
                          {"make more than 68719542272 bytes of a text of 1073741824"});
}

TEST_F(TokenizerLimits, PatternsThatLookBackFarAreRefused) {
  const auto back = [](std::size_t count) {
    return with("pre_tokenizer", split(fmt::format("(?<=.{{{}}}Q|Q)x", count - 1)));
  };
  EXPECT_EQ(load(back(16)).encode("Qx").size(), 2U);
  expect_no_file<Unsupported>(
      back(17), {"pre_tokenizer.pattern", "looks back at 17 characters", "16 at most"});
  expect_no_file<Unsupported>(back(60'000), {"looks back at 60000 characters"});
  const Json pattern = {{"Regex", "(?<!.{20})x"}};
  expect_no_file<Unsupported>(
      with("normalizer", {{"type", "Replace"}, {"pattern", pattern}, {"content", ""}}),
      {"normalizer.pattern", "looks back at 20 characters"});
}

TEST_F(TokenizerLimits, PiecesOfUnigramHaveEightMegabytesTogether) {
  const auto unigram = [](std::size_t count) {
    Json vocab = Json::array();
    for (std::size_t i = 0; i < count; ++i) {
      vocab.push_back(Json::array({fmt::format("{:04}{}", i, std::string(1020, 'x')), -1}));
    }
    Json json = with("model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}});
    json["added_tokens"].clear();
    return json;
  };
  expect_no_file<Unsupported>(unigram(8193),
                              {"model.vocab[0] to [8192] have 8389632 bytes", "at most 8388608"});
  EXPECT_EQ(load(unigram(1000)).encode("0999" + std::string(1020, 'x')), Ids{999});
}

}  // namespace
}  // namespace topkv
