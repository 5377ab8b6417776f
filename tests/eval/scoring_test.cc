// What answers are worth, and how certain a mean of that is.

#include "src/eval/tasks/scoring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "src/eval/run/confidence_interval.h"
#include "src/eval/tasks/random_draws.h"

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
