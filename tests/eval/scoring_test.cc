// What answers are worth, and how certain a mean of that is.

#include "src/eval/tasks/scoring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "src/core/text/utf8.h"
#include "src/eval/run/confidence_interval.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/record_score.h"
#include "src/eval/tasks/sequence_ratio.h"
#include "src/eval/tasks/tsv_score.h"

namespace topkv {
namespace {

TEST(Scores, AllIsTheShareOfReferencesThatOccurInAnyCase) {
  EXPECT_DOUBLE_EQ(score_of(Scoring::all, " 12, QUIET-river.", {"12", "quiet-river", "7", "9"}),
                   0.5);
  EXPECT_DOUBLE_EQ(score_of(Scoring::all, "", {"1"}), 0);
}

TEST(Scores, AnyIsOneWhereOneReferenceOccurs) {
  EXPECT_DOUBLE_EQ(score_of(Scoring::any, "in Strelsau.", {"Zenda", "strelsau"}), 1);
  EXPECT_DOUBLE_EQ(score_of(Scoring::any, "in Zend", {"Zenda"}), 0);
}

TEST(Scores, ANumberIsTheFirstInTheAnswer) {
  EXPECT_EQ(first_number(" is 1,240 or 7"), "1240");
  EXPECT_EQ(first_number("12, 13"), "12");
  EXPECT_EQ(first_number("1,2345"), "1");
  EXPECT_EQ(first_number("none"), "");
  EXPECT_DOUBLE_EQ(score_of(Scoring::number, " 12.", {"12"}), 1);
  EXPECT_DOUBLE_EQ(score_of(Scoring::number, " 512.", {"12"}), 0);
  EXPECT_DOUBLE_EQ(score_of(Scoring::number, "7 or 12", {"12"}), 0);
}

TEST(Scores, AMatchIsCountedInCharacters) {
  EXPECT_EQ(match_length("\n and so on", " and so forth"), 7);
  EXPECT_EQ(match_length("", "a"), 0);
  EXPECT_EQ(match_length("a longer answer", "a long"), 6);
  EXPECT_EQ(match_length("short", "shorter"), 5);
  EXPECT_EQ(match_length("Größe", "Größen"), 5);
  EXPECT_EQ(match_length("ä", "ö"), 0);  // the first byte is the same
  EXPECT_DOUBLE_EQ(score_of(Scoring::match, "abc", {"abd"}), 2);
}

// Expected values: difflib.SequenceMatcher(None, a, b).ratio() of CPython 3.11.

TEST(SequenceRatios, AreThoseOfDifflib) {
  EXPECT_EQ(sequence_ratio("", ""), 1);
  EXPECT_EQ(sequence_ratio("", "a"), 0);
  EXPECT_DOUBLE_EQ(sequence_ratio("abcd", "bcde"), 0.75);
  EXPECT_DOUBLE_EQ(sequence_ratio("tide", "diet"), 0.25);
  EXPECT_DOUBLE_EQ(sequence_ratio("diet", "tide"), 0.5);
  EXPECT_DOUBLE_EQ(
      sequence_ratio("private Thread currentThread;", "private volatile Thread currentThread;"),
      0.8656716417910447);
  EXPECT_DOUBLE_EQ(sequence_ratio("qabxcd", "abycdf"), 0.6666666666666666);
  EXPECT_DOUBLE_EQ(sequence_ratio("  the cat sat on", "the mat sat on it"), 0.7878787878787878);
  EXPECT_DOUBLE_EQ(sequence_ratio("aaaaab", "baaaaa"), 0.8333333333333334);
}

TEST(SequenceRatios, CountCharactersAndNotBytes) {
  EXPECT_DOUBLE_EQ(sequence_ratio("Größe", "Grüße"), 0.8);
  EXPECT_DOUBLE_EQ(sequence_ratio("a\xff", "a\xfe"), 1);  // U+FFFD both
}

/// Characters of an alphabet in an order that Python can repeat:
///   for _ in range(n): x = (x * 1103515245 + 12345) % 2**31; text += alphabet[(x >> 16) % size]
std::string drawn_text(std::uint64_t x, std::int64_t length, std::u32string_view alphabet) {
  std::string text;
  for (std::int64_t i = 0; i < length; ++i) {
    x = (x * 1103515245 + 12345) % (std::uint64_t{1} << 31U);
    append_utf8(alphabet[(x >> 16U) % alphabet.size()], text);
  }
  return text;
}

TEST(SequenceRatios, OfLongTextsLeaveOutPopularCharacters) {
  std::u32string han;
  for (char32_t c = 0x4e00; c < 0x4e00 + 200; ++c) han += c;
  struct Case {
    std::int64_t a, b;
    std::u32string alphabet;
    double ratio;
  };
  // Seeds are a and b + 1.
  for (const auto& [a, b, alphabet, ratio] : {Case{50, 60, U"abc", 0.5272727272727272},
                                              {199, 199, U"ab", 0.3316582914572864},
                                              {200, 200, U"ab", 0.005},
                                              {300, 250, U"abcdefghijklmnopqrstuvwxyz ", 0},
                                              {199, 500, U"abcdefgh", 0.002861230329041488},
                                              {500, 199, U"abcdefgh", 0.16022889842632332},
                                              {400, 400, han, 0.0275}}) {
    const std::string first = drawn_text(static_cast<std::uint64_t>(a), a, alphabet);
    const std::string second = drawn_text(static_cast<std::uint64_t>(b) + 1, b, alphabet);
    EXPECT_DOUBLE_EQ(sequence_ratio(first, second), ratio) << a << " " << b;
    EXPECT_EQ(sequence_ratio(second, second), 1);
  }
  // 400 characters of which the last 200 are the first of the other text.
  const std::string second = drawn_text(401, 400, han);
  EXPECT_DOUBLE_EQ(
      sequence_ratio(drawn_text(400, 400, han).substr(3 * 133) + second.substr(0, 3 * 200), second),
      0.461361014994233);
}

TEST(Scores, APrefixedSequenceCountsBehindItsPrefix) {
  const std::vector<std::string> reference = {"aYooSG8CQgabcd"};
  const auto score = [&](std::string_view answer) {
    return score_of(Scoring::prefixed_sequence, answer, reference);
  };
  EXPECT_EQ(score("aYooSG8CQgabcd"), 1);
  EXPECT_EQ(score(" aYooSG8CQgabcd\n"), 1);
  EXPECT_DOUBLE_EQ(score("aYooSG8CQgbcde"), 0.75);
  EXPECT_EQ(score("aYooSG8CQg"), 0);
  EXPECT_EQ(score("abcd"), 0);
  EXPECT_EQ(score("aYooSG8CQ"), 0);
  EXPECT_EQ(score("Sure: aYooSG8CQgabcd"), 0);
  EXPECT_EQ(score(""), 0);
  EXPECT_EQ(score("\xff\xfe"), 0);
  EXPECT_EQ(score("aYooSG8CQg" + std::string(10'000'000, 'a')), 0);
  EXPECT_DOUBLE_EQ(score("aYooSG8CQgab\xff\xff"), 0.5);
}

constexpr const char* two_people = R"([{"name": "Ann", "trade": "mason", "town": "Milford"}, )"
                                   R"({"name": "Bob", "trade": "baker", "town": "Ashford"}])";

TEST(RecordScores, AreTheShareOfTheReference) {
  EXPECT_EQ(record_score(two_people, two_people), 1);
  EXPECT_EQ(score_of(Scoring::records, two_people, {two_people}), 1);
  // Another order of records and keys, other white space, text around them.
  EXPECT_EQ(record_score("Here:\n```json\n[\n {\"town\": \"Ashford\", \"trade\": \"baker\",\n"
                         "\"name\": \"Bob\"}, {\"name\":\"Ann\",\"trade\":\"mason\",\"town\":"
                         "\"Milford\"}]\n``` [1]",
                         two_people),
            1);
  EXPECT_EQ(record_score(R"([{"name": "Ann", "trade": "mason", "town": "Milford"}])", two_people),
            0.5);
}

TEST(RecordScores, TakeAHalfForAMissingKeyAndAQuarterForAWrongValue) {
  const std::string reference = R"([{"name": "Ann", "trade": "mason", "town": "7"}])";
  const auto score = [&](std::string_view answer) { return record_score(answer, reference); };
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "mason"}])"), 0.5);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "mason", "town": null}])"), 0.5);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "baker", "town": "7"}])"), 0.75);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "mason", "town": 7}])"), 1);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "mason", "town": 7.0}])"), 0.75);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": {"a": 1}, "town": true}])"), 0.5);
  EXPECT_EQ(score(R"([{"name": "Ann"}])"), 0);
  EXPECT_EQ(score(R"([{"name": "Ann", "trade": "mason", "town": "7", "age": "9"}])"), 1);
}

TEST(RecordScores, DivideByRecordsThatAreTooMany) {
  const std::string reference = R"([{"name": "Ann", "trade": "mason", "town": "Milford"}])";
  const std::string ann = reference.substr(1, reference.size() - 2);
  EXPECT_EQ(record_score("[" + ann + ", " + ann + "]", reference), 0.5);
  EXPECT_EQ(record_score("[" + ann + R"(, {"name": "Eve"}])", reference), 0.5);
  EXPECT_EQ(
      record_score("[" + ann + R"(, {"trade": "mason"}, "Ann", 3, null, {"name": 1}])", reference),
      1.0 / 6);
}

TEST(RecordScores, OfAnswersThatAreNoListOfRecordsAreZero) {
  for (const std::string& answer : std::vector<std::string>{
           "", "]", "[", "[]", "]\n[", "nothing", "[{\"name\": \"Ann\"", "[{\"name\": \"Ann\"]",
           "{\"name\": \"Ann\"}", "[{\"name\": NaN}]", "[\xff\xfe{]", "[{\"name\": \"\xff\"}]",
           "[" + std::string(200'000, '{') + "]", std::string(5'000'000, '['),
           "[{\"name\": \"" + std::string(5'000'000, 'a') + "\"}]"}) {
    EXPECT_EQ(record_score(answer, two_people), 0) << answer.substr(0, 40);
  }
  std::string nested = "[";
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  EXPECT_EQ(record_score(nested + "1" + std::string(100'000, '}') + "]", two_people), 0);
}

TEST(TsvScores, AreTheF1OfRows) {
  const std::string reference =
      "object\ttown\tyear\nAmber lamp\tAshford\t1801\nOld saw\tYork\t1912\n";
  const auto score = [&](std::string_view answer) { return tsv_score(answer, reference); };
  const std::string lamp = "Amber lamp\tAshford\t1801\n";
  const std::string saw = "Old saw\tYork\t1912\n";
  EXPECT_EQ(score(lamp + saw), 1);
  EXPECT_EQ(score_of(Scoring::tsv_rows, lamp + saw, {reference}), 1);
  EXPECT_EQ(score(reference), 1);  // with the header
  EXPECT_EQ(score("\n" + saw + lamp + "\nThat is all.\tI\tthink"), 1);
  EXPECT_EQ(score("Here:\n```tsv\n" + reference + "```\nOld\tsaw\tx\n"), 1);
  EXPECT_EQ(score("the amber  LAMP.\tAsh ford\t1,801\r\nold saw\tyork\t1912"), 1);
  EXPECT_DOUBLE_EQ(score(lamp), 2.0 / 3);                                   // 1 of 1, 1 of 2
  EXPECT_DOUBLE_EQ(score(lamp + saw + "Tin cup\tYork\t1913\n"), 0.8);       // 2 of 3, 2 of 2
  EXPECT_DOUBLE_EQ(score(lamp + lamp + "Tin cup\tYork\t1913\n"), 4.0 / 7);  // 2 of 3, 1 of 2
  EXPECT_DOUBLE_EQ(score("Amber lamp\tAshford\n" + saw), 0.5);  // a cell is missing: 1 of 2, 1 of 2
  EXPECT_DOUBLE_EQ(score(saw + "Amber lamp\tAshf"), 2.0 / 3);   // the last row is cut off
  EXPECT_EQ(score("Amber lamp\tAshford\t1802\nOld saw\tYork\t1911"), 0);
}

TEST(TsvScores, OfAnswersWithoutSuchRowsAreZero) {
  for (const std::string& answer : std::vector<std::string>{
           "", "\n\n", "\t", "a\tb", "a\tb\n", "```tsv", "```tsv```", "\xff\t\xfe", "a\tb\nb\ta\n",
           std::string(5'000'000, '\t'), std::string(5'000'000, 'x')}) {
    EXPECT_EQ(tsv_score(answer, "a\tb\nx\ty\n"), 0) << answer.substr(0, 40);
  }
}

TEST(SquadF1, ComparesWordsAsSquadDoes) {
  EXPECT_EQ(squad_normalised(" The  Quick, an \"old\" fox's"), "quick old foxs");
  EXPECT_DOUBLE_EQ(squad_f1("The cat.", {"a cat"}), 1);
  EXPECT_DOUBLE_EQ(squad_f1("the black cat sat", {"cat", "white cat"}), 0.5);  // 1 of 3, 1 of 1
  EXPECT_DOUBLE_EQ(squad_f1("cat cat", {"cat"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(squad_f1("dog", {"cat"}), 0);
  EXPECT_DOUBLE_EQ(squad_f1("the", {"a"}), 1);
}

TEST(Intervals, AreWilsonsWhereScoresAre0Or1) {
  const std::vector<double> eight_of_ten = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
  const auto interval = mean_interval(eight_of_ten, 1);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->kind, "wilson");
  EXPECT_NEAR(interval->low, 0.4902, 5e-5);  // R: prop.test(8, 10, correct = FALSE)
  EXPECT_NEAR(interval->high, 0.9433, 5e-5);
  EXPECT_NEAR(mean_interval(std::vector<double>{1}, 1)->low, 0.2065, 5e-5);
  EXPECT_DOUBLE_EQ(mean_interval(std::vector<double>{1}, 1)->high, 1);
}

TEST(Intervals, AreStudentsForOtherScores) {
  const std::vector<double> scores = {0.25, 0.5, 0.75, 0.5};
  const auto interval = mean_interval(scores, 1);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->kind, "t");
  // Deviation 0.20412, of the mean 0.10206; times 3.18245.
  EXPECT_NEAR(interval->low, 0.5 - 0.32481, 1e-4);
  EXPECT_NEAR(interval->high, 0.5 + 0.32481, 1e-4);
  EXPECT_FALSE(mean_interval(std::vector<double>{0.5}, 1));
  EXPECT_FALSE(mean_interval(std::vector<double>{1}, 300));
  EXPECT_FALSE(mean_interval(std::vector<double>{0.5, 0.5, 0.5}, 1));
  // 20 degrees of freedom: 2.08596. Scores -1 and 1 around 10 have the deviation sqrt(20 / 20).
  std::vector<double> many(20, 9);
  std::fill(many.begin() + 10, many.end(), 11);
  many.push_back(10);
  EXPECT_NEAR(mean_interval(many, 300)->high, 10 + 2.08596 / std::sqrt(21.0), 1e-4);
  EXPECT_DOUBLE_EQ(mean_interval(std::vector<double>{0.1, 0.9}, 1)->low, 0);
  EXPECT_DOUBLE_EQ(mean_interval(std::vector<double>{0.1, 0.9}, 1)->high, 1);
}

TEST(Draws, AreDifferentNumbersInAnyOrder) {
  Random random(3);
  const std::vector<std::int64_t> all = draw(random, 50, 50);
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 50U);
  EXPECT_FALSE(std::ranges::is_sorted(all));
  std::vector<std::int64_t> counts(10, 0);
  for (int i = 0; i < 10000; ++i) {
    for (const std::int64_t number : draw(random, 10, 3))
      ++counts[static_cast<std::size_t>(number)];
  }
  for (const std::int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 3000, 250);
}

TEST(Draws, WordsAreDifferentHoweverMany) {
  for (const std::int64_t count : {10, 200, 1000, 40000, 100000}) {
    Random random(1);
    const std::vector<std::string> words = draw_words(random, count);
    EXPECT_EQ(std::ssize(words), count);
    EXPECT_EQ(std::ssize(std::set<std::string>(words.begin(), words.end())), count);
  }
}

TEST(Draws, MoreWordsBeginWithFewer) {
  const auto words = [](std::int64_t count) {
    Random random(2);
    return draw_words(random, count);
  };
  const std::vector<std::string> all = words(8166);
  EXPECT_FALSE(std::ranges::is_sorted(all));
  for (const std::int64_t count : {1, 11, 12, 5000}) {
    EXPECT_TRUE(std::ranges::equal(words(count), std::span(all).first(count))) << count;
  }
  EXPECT_NE(words(8167)[0].find('-'), std::string::npos);
}

}  // namespace
}  // namespace topkv
