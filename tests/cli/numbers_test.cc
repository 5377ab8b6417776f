// Numbers on the command line, their way back to text, and "did you mean".

#include <gtest/gtest.h>

#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "tests/support/temp_directory.h"

namespace topkv::cli {
namespace {

TEST(CliCount, BinaryUnitsAreUnderstoodInEveryUsualSpelling) {
  EXPECT_EQ(parse_count("-c", "4096"), 4096);
  EXPECT_EQ(parse_count("-c", "128K"), 131072);
  EXPECT_EQ(parse_count("-c", "128k"), 131072);
  EXPECT_EQ(parse_count("-c", "128Ki"), 131072);
  EXPECT_EQ(parse_count("-c", "1M"), 1048576);
  EXPECT_EQ(parse_count("-c", "1Mi"), 1048576);
  EXPECT_EQ(parse_count("-c", "1.5M"), 1572864);
  EXPECT_EQ(parse_count("-c", "2G"), std::int64_t{1} << 31);
  EXPECT_EQ(parse_count("--kv-sinks", "0", 0), 0);
}

TEST(CliCount, WhatIsNoCountIsRefusedNamingTheFlag) {
  for (const char* text : {"", "abc", "-5", "1X", "1KiB", "K", "1.3", "1e3", "nan", "inf", "0x10",
                           "1 2", "0", "99999999999T", "1e400"}) {
    expect_error<UsageError>([&] { parse_count("-c", text); }, "-c: ", {});
  }
  expect_error<UsageError>([] { parse_count("-c", "12Q"); }, "-c: ", {"12Q", "unit"});
  expect_error<UsageError>([] { parse_count("-c", "99999999999T"); }, "-c: ", {"below 2^62"});
}

TEST(CliCount, BoundsAreSaidWithWhatWasFound) {
  EXPECT_EQ(parse_count("-t", "8", 1, 8), 8);
  expect_error<UsageError>([] { parse_count("-t", "9", 1, 8); }, "-t: ", {"1 to 8", "'9'"});
  expect_error<UsageError>([] { parse_count("-c", "0"); }, "-c: ", {"1 or more", "'0'"});
}

TEST(CliReal, NumbersOutsideTheirRangeAndThingsThatAreNone) {
  EXPECT_DOUBLE_EQ(parse_real("--temp", "0.7", 0, 100), 0.7);
  EXPECT_DOUBLE_EQ(parse_real("--temp", "0", 0, 100), 0);
  EXPECT_DOUBLE_EQ(parse_real("--top-p", "1", 0, 1, true), 1);
  for (const char* text : {"", "nan", "inf", "-0.5", "101", "1e1", "0x1", "0.5x", "0,5", "hot"}) {
    expect_error<UsageError>([&] { parse_real("--temp", text, 0, 100); },
                             "--temp: expected a number from 0 to 100", {text});
  }
  expect_error<UsageError>([] { parse_real("--top-p", "0", 0, 1, true); },
                           "--top-p: expected a number above 0 and up to 1", {"'0'"});
}

TEST(CliSeed, TakesAllOf64BitsAndNoSign) {
  EXPECT_EQ(parse_seed("--seed", "0"), 0U);
  EXPECT_EQ(parse_seed("--seed", "18446744073709551615"), ~std::uint64_t{0});
  for (const char* text : {"", "-1", "+1", "1.5", "18446744073709551616", "nan", "1K", "0x2a"}) {
    expect_error<UsageError>([&] { parse_seed("--seed", text); }, "--seed: ", {text});
  }
}

TEST(CliBytes, UnitsAreBinaryButThoseThatBytesAreSoldIn) {
  for (const char* text : {"8GiB", "8Gi", "8G", "8 GiB", "8gib"})
    EXPECT_EQ(parse_bytes("--mem", text), std::int64_t{8} << 30) << text;
  for (const char* text : {"8GB", "8 GB", "8gb", "8000MB", "8000000KB", "8000000kB"})
    EXPECT_EQ(parse_bytes("--mem", text), 8'000'000'000) << text;
  EXPECT_EQ(parse_bytes("--mem", "1.5TB"), 1'500'000'000'000);
  EXPECT_EQ(parse_bytes("--mem", "2000000B"), 2'000'000);
  EXPECT_EQ(parse_bytes("--mem", "512 MiB"), std::int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("--mem", "1048576"), 1 << 20);
  for (const char* text : {"8", "1K", "1023KiB", "1MB", "1048575"}) {  // a unit forgotten
    expect_error<UsageError>([&] { parse_bytes("--mem", text); },
                             "--mem: ", {"1 MiB or more", text});
  }
  expect_error<UsageError>([] { parse_bytes("--mem", "0"); }, "--mem: ", {});
  expect_error<UsageError>([] { parse_bytes("--mem", "much"); }, "--mem: ", {"much"});
}

TEST(CliCounts, ListsKeepTheirOrderAndDropRepetitions) {
  EXPECT_EQ(parse_counts("-c", "1M,128K, 1024K"), (std::vector<std::int64_t>{1048576, 131072}));
  expect_error<UsageError>([] { parse_counts("-c", "1M,,2M"); }, "-c: ", {});
}

TEST(CliDepths, ANumberMeansThatManyEvenlySpread) {
  EXPECT_EQ(parse_depths("--depths", "10"),
            (std::vector<double>{5, 15, 25, 35, 45, 55, 65, 75, 85, 95}));
  EXPECT_EQ(parse_depths("--depths", "1"), (std::vector<double>{50}));
}

TEST(CliDepths, PercentagesAreSortedAndDistinct) {
  EXPECT_EQ(parse_depths("--depths", "95,5,50,5"), (std::vector<double>{5, 50, 95}));
  EXPECT_EQ(parse_depths("--depths", "50%"), (std::vector<double>{50}));
  EXPECT_EQ(parse_depths("--depths", "0,12.5,100"), (std::vector<double>{0, 12.5, 100}));
  for (const char* text : {"0", "-1,5", "5,101", "5,,6", "x", "5,x", "2000"}) {
    expect_error<UsageError>([&] { parse_depths("--depths", text); }, "--depths: ", {});
  }
}

TEST(CliFormat, NumbersReadAsPeopleWriteThem) {
  EXPECT_EQ(format_count(131072), "128K");
  EXPECT_EQ(format_count(1048576), "1M");
  EXPECT_EQ(format_count(1000), "1000");
  EXPECT_EQ(format_count(1536 * 1024), "1536K");
  EXPECT_EQ(format_grouped(0), "0");
  EXPECT_EQ(format_grouped(-1234), "-1,234");
  EXPECT_EQ(format_grouped(1048576), "1,048,576");
  EXPECT_EQ(byte_text(900), "900 B");
  EXPECT_EQ(byte_text(std::int64_t{4} << 30), "4.0 GiB");
  EXPECT_EQ(byte_text((std::int64_t{1} << 30) - 1), "1.0 GiB");
  EXPECT_EQ(format_seconds(0.42), "0.4 s");
  EXPECT_EQ(format_seconds(185), "3 min 05 s");
  EXPECT_EQ(format_seconds(7800), "2 h 10 min");
  EXPECT_EQ(format_rate(0), "-");
  EXPECT_EQ(format_rate(0.42), "0.42");
  EXPECT_EQ(format_rate(31.52), "31.5");
  EXPECT_EQ(format_rate(1240.4), "1,240");
}

TEST(CliFormat, CountsSurviveTheWayToTextAndBack) {
  for (const std::int64_t count : {1L, 1000L, 4096L, 131072L, 1048576L, 1048577L, 1L << 40}) {
    EXPECT_EQ(parse_count("-c", format_count(count)), count);
  }
}

TEST(CliText, BytesThatAreNotUtf8AreFoundAndShown) {
  for (const char* text : {"", "plain", "é…\U0001f600", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(first_not_utf8(text), std::string::npos) << text;
    EXPECT_EQ(printable(text), text);
  }
  // Lone continuation, cut short, overlong, surrogate, above U+10FFFF.
  for (const char* text : {"\x80", "\xc3", "\xe2\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(first_not_utf8(std::string("ab") + text), 2U);
    EXPECT_EQ(first_not_utf8(printable(text)), std::string::npos);
  }
  EXPECT_EQ(printable("caf\xe9 \xc3\xa9"), "caf\\xe9 \xc3\xa9");
  expect_error<UsageError>([] { check_utf8("--answer", "caf\xe9"); },
                           "--answer: ", {"UTF-8", "0xe9", "position 3"});
}

TEST(CliText, ParagraphsBreakAtSpacesAndKeepTheirIndent) {
  EXPECT_EQ(labelled("a", "one two three four", 20, 4), "a   one two three\n    four\n");
  EXPECT_EQ(labelled("a", "unbreakable-word", 10, 4), "a   unbreakable-word\n");
  EXPECT_EQ(labelled("", "", 10, 0), "\n");
  EXPECT_EQ(labelled("a", "bb  cc", 4, 2), "a bb\n  cc\n");
}

TEST(CliText, OneLineShowsNoControlCharacterOfAnyKind) {
  EXPECT_EQ(one_line("a\x1b[31mb", 40), "a [31mb");
  EXPECT_EQ(one_line("a\xc2\x9b"
                     "31mb\xc2\xa9",
                     40),
            "a 31mb\xc2\xa9");  // CSI of C1
}

TEST(CliSuggest, ATypingErrorFindsItsNeighbourAndNonsenseFindsNothing) {
  const std::vector<std::string> flags = {"--kv-topk", "--kv-window", "--top-k", "-c"};
  EXPECT_EQ(nearest("--kv-topkk", flags), "--kv-topk");
  EXPECT_EQ(nearest("--kvtopk", flags), "--kv-topk");
  EXPECT_EQ(nearest("--kv-windwo", flags), "--kv-window");
  EXPECT_EQ(nearest("--completely-else", flags), "");
  EXPECT_EQ(nearest(std::string(100000, 'x'), flags), "");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("nosie", "noise"), 1U);
}

}  // namespace
}  // namespace topkv::cli
