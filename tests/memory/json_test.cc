// What is told of JSON takes no more memory than a message, however long the JSON is.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "src/core/format/json_file.h"
#include "tests/memory/counted_memory.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using ::test::HeapPeak;

constexpr std::size_t long_bytes = 20'000'000;
constexpr std::int64_t most_bytes = 64 << 10;

std::string whole(const Json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() > 100 ? text.substr(0, 100) + "..." : text;
}

TEST(JsonMemory, ValuesAreShownByTheirBeginning) {
  std::string emojis = "a";
  for (int i = 0; i < 60; ++i) emojis += "\U0001F600";
  const Json values[] = {
      nullptr,
      "",
      "short",
      std::string(99, 'a'),
      std::string(101, 'a'),
      std::string(10, '\x01'),
      emojis,
      Json::array(),
      Json::object(),
      {1, 2.5, true, nullptr, "x"},
      {{{{1, 2}, {3}}, {}}, {4}},
      {{"key", {{"inner", std::string(50, 'b')}, {"last", {1, 2, 3}}}}, {"other", "é"}},
      {{std::string(300, 'k'), 1}, {std::string(300, 'k') + "l", 2}},
      {std::string(30, 'a'), std::string(30, 'b'), std::string(30, 'c'), std::string(30, 'd')},
      Json::array({Json(std::vector<int>(200, 7))}),
  };
  for (const Json& value : values) EXPECT_EQ(shown(value), whole(value));
}

TEST(JsonMemory, OfLongValuesOnlyTheBeginningIsWritten) {
  const Json values[] = {
      std::string(long_bytes, '\x01'),
      Json::array({std::string(long_bytes, '\x01')}),
      Json::array({Json(std::vector<int>(1'000'000, 7))}),
      {{std::string(long_bytes, 'k'), 1}},
  };
  for (const Json& value : values) {
    const HeapPeak peak;
    EXPECT_TRUE(shown(value).ends_with("..."));
    EXPECT_LT(peak.bytes(), most_bytes);
  }
  const std::string bytes(long_bytes, '\xff');
  const HeapPeak peak;
  EXPECT_TRUE(shown_bytes(bytes).ends_with("..."));
  EXPECT_LT(peak.bytes(), most_bytes);
}

TEST(JsonMemory, LineBreaksWithoutEndAreRefusedBeforeTheyAreKept) {
  for (const std::string_view kind : {"\n", "\r\n", "\t ", "  \n"}) {
    std::string text = "[1,";
    while (text.size() < long_bytes) text += kind;
    text += '!';
    const HeapPeak peak;
    expect_error<FileError>([&] { parse_json(text, "a.json"); },
                            "a.json: ", {"more than 65536 line breaks"});
    EXPECT_LT(peak.bytes(), most_bytes);
  }
  const std::string some(60'000, '\n');
  EXPECT_EQ(parse_json("[" + some + "1," + some + "2]", "a.json"), Json({1, 2}));
}

}  // namespace
}  // namespace topkv
