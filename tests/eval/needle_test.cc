// What is hidden and asked: wording, values, scoring, haystacks, and contexts of
// exact length with needles at the depths asked.

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>

#include "src/eval/tasks/haystack.h"
#include "src/eval/tasks/needle_context.h"
#include "src/eval/tasks/needle_grid.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/word_lists.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

// A tokenizer that makes one token of every byte: lengths and positions can be checked by eye.
std::vector<Token> bytes_as_tokens(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string text_of(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text.push_back(static_cast<char>(token));
  return text;
}

std::string text_of(const std::vector<Token>& tokens, PositionRange range) {
  return text_of({tokens.begin() + range.begin, tokens.begin() + range.end});
}

std::string no_distractor() { throw std::logic_error("this haystack has no distractors"); }

const std::vector<double> ten_depths = {5, 15, 25, 35, 45, 55, 65, 75, 85, 95};

TEST(NeedleWording, OneNumberIsAskedInRulersWords) {
  const NeedleTask task(NeedleStyle::number, {});
  const Needle needle = task.needles({50}, 1).front();
  EXPECT_EQ(task.intro(),
            "A special magic number is hidden within the following text. Make sure to memorize it. "
            "I will quiz you about the number afterwards.");
  EXPECT_EQ(needle.sentence,
            "One of the special magic numbers for " + needle.key + " is: " + needle.value + ".");
  EXPECT_EQ(needle.question, "What is the special magic number for " + needle.key +
                                 " mentioned in the provided text? The special magic number for " +
                                 needle.key + " mentioned in the provided text is");
}

TEST(NeedleWording, WordsAndUuidsChangeTheTypeAlone) {
  const NeedleTask word(NeedleStyle::word, {});
  EXPECT_EQ(word.intro(),
            "A special magic word is hidden within the following text. Make sure to memorize it. "
            "I will quiz you about the word afterwards.");
  EXPECT_TRUE(
      word.needles({50}, 1).front().sentence.starts_with("One of the special magic words for "));
  const NeedleTask uuid(NeedleStyle::uuid, {});
  EXPECT_TRUE(
      uuid.needles({50}, 1).front().question.starts_with("What is the special magic uuid for "));
}

TEST(NeedleWording, PasskeyIsAskedAsInLandmarkAttention) {
  const NeedleTask task(NeedleStyle::passkey, {});
  const Needle needle = task.needles({50}, 1).front();
  EXPECT_EQ(needle.sentence, "The pass key is " + needle.value + ". Remember it. " + needle.value +
                                 " is the pass key.");
  EXPECT_EQ(needle.question, "What is the pass key? The pass key is");
  EXPECT_TRUE(task.one_per_context());
}

TEST(NeedleWording, OwnNeedlesAreTakenAsGiven) {
  const NeedleTask task(NeedleStyle::custom, {"Ada hid it in the oven.", "Where? In the", "oven"});
  const std::vector<Needle> needles = task.needles({10, 90}, 1);
  EXPECT_EQ(needles[1].sentence, "Ada hid it in the oven.");
  EXPECT_EQ(needles[1].question, "Where? In the");
  EXPECT_EQ(needles[1].value, "oven");
  EXPECT_EQ(task.intro(), "");
}

TEST(NeedleValues, HaveRulersForms) {
  const auto value = [](NeedleStyle style) {
    return NeedleTask(style, {}).needles({50}, 7).front().value;
  };
  EXPECT_TRUE(std::regex_match(value(NeedleStyle::number), std::regex("[1-9][0-9]{6}")));
  EXPECT_TRUE(std::regex_match(value(NeedleStyle::word), std::regex("[a-z]+-[a-z]+")));
  EXPECT_TRUE(std::regex_match(
      value(NeedleStyle::uuid),
      std::regex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")));
  EXPECT_TRUE(std::regex_match(value(NeedleStyle::passkey), std::regex("[1-9][0-9]{4}")));
}

TEST(NeedleValues, AreDistinctInAContextAndFollowTheSeed) {
  const NeedleTask task(NeedleStyle::word, {});
  const std::vector<double> depths(200, 50);
  std::set<std::string> words;
  for (const Needle& needle : task.needles(depths, 3)) {
    words.insert(needle.key);
    words.insert(needle.value);
  }
  EXPECT_EQ(words.size(), 400U);
  EXPECT_EQ(task.needles({5}, 3).front().key, task.needles({5}, 3).front().key);
  EXPECT_NE(task.needles({5}, 3).front().key, task.needles({5}, 4).front().key);
}

TEST(Scoring, TheValueCountsWhereverItStandsInAnyCase) {
  EXPECT_TRUE(answer_has(" 1234567.", "1234567"));
  EXPECT_TRUE(answer_has("it is Quiet-River, I think", "quiet-river"));
  EXPECT_FALSE(answer_has(" 123456", "1234567"));
  EXPECT_FALSE(answer_has("", "1"));
}

TEST(Words, ListsHoldNoWordTwice) {
  for (const auto words : {adjectives(), nouns()}) {
    EXPECT_EQ(std::set<std::string_view>(words.begin(), words.end()).size(), words.size());
    EXPECT_GE(words.size(), 200U);
  }
}

TEST(Haystacks, NoiseIsRulers) {
  const auto noise = make_haystack("noise", 1, no_distractor);
  EXPECT_EQ(noise->next(),
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.");
  EXPECT_EQ(noise->separator(), "\n");
}

TEST(Haystacks, GeneratedSentencesFollowTheSeedAndRarelyRepeat) {
  const auto a = make_haystack("generated", 1, no_distractor);
  const auto b = make_haystack("generated", 1, no_distractor);
  const auto c = make_haystack("generated", 2, no_distractor);
  std::set<std::string> different;
  int same_as_c = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string sentence = a->next();
    EXPECT_EQ(sentence, b->next());
    same_as_c += sentence == c->next() ? 1 : 0;
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(sentence.front()))) << sentence;
    EXPECT_EQ(sentence.back(), '.') << sentence;
    EXPECT_EQ(sentence.find("  "), std::string::npos) << sentence;
    EXPECT_EQ(sentence.find("magic"), std::string::npos) << sentence;
    different.insert(sentence);
  }
  EXPECT_GT(different.size(), 1980U);
  EXPECT_LT(same_as_c, 20);
}

TEST(Haystacks, DistractorsNeverNameAnAskedKeyOrValue) {
  const NeedleTask task(NeedleStyle::word, {});
  const std::vector<Needle> needles = task.needles(ten_depths, 5);
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    const std::string sentence = task.distractor(random, needles);
    for (const Needle& needle : needles) {
      ASSERT_EQ(sentence.find(" " + needle.key + " "), std::string::npos) << sentence;
      ASSERT_EQ(sentence.find(" " + needle.value + "."), std::string::npos) << sentence;
    }
  }
}

TEST(Haystacks, ADirectoryIsReadInNameOrderAndRepeated) {
  const TempDirectory directory;
  directory.write("b.txt", "Third one!  \"Fourth?\"\n\nNo full stop here");
  directory.write("a.md", "First   one.\nSecond\tone.");
  directory.write("c.cc", "not text.");
  const auto texts = make_haystack(directory.path().string(), 1, no_distractor);
  EXPECT_EQ(texts->next(), "First one.");
  EXPECT_EQ(texts->next(), "Second one.");
  EXPECT_EQ(texts->next(), "Third one!");
  EXPECT_EQ(texts->next(), "\"Fourth?\"");
  EXPECT_EQ(texts->next(), "No full stop here");
  EXPECT_EQ(texts->next(), "First one.");
}

TEST(Haystacks, TextWithoutFullStopsIsCutAtSpaces) {
  const TempDirectory directory;
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "word ";
  directory.write("a.txt", words);
  const auto texts = make_haystack(directory.path().string(), 1, no_distractor);
  for (int i = 0; i < 20; ++i) {
    const std::string piece = texts->next();
    EXPECT_LE(piece.size(), 610U);
    EXPECT_TRUE(piece.starts_with("word") && piece.ends_with("word")) << piece;
  }
}

TEST(Haystacks, WhatCannotBeReadIsRefused) {
  const TempDirectory directory;
  expect_error<FileError>([&] { check_haystack(directory.path().string()); },
                          directory.path().string(), {"no *.txt or *.md"});
  expect_error<InvalidArgument>([] { check_haystack("nosie"); }, "'nosie' is neither noise", {});
  directory.write("empty.txt", " \n ");
  expect_error<FileError>([&] { make_haystack(directory.path().string(), 1, no_distractor); },
                          directory.path().string(), {"empty"});
}

struct ContextCase {
  std::string haystack;
  std::int64_t length;
};
void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.haystack << c.length; }

class NeedleContexts : public testing::TestWithParam<ContextCase> {
 protected:
  NeedleContext build(const std::vector<Needle>& needles) const {
    Random random(9);
    const auto haystack =
        make_haystack(GetParam().haystack, 9, [&] { return task_.distractor(random, needles); });
    return build_needle_context(GetParam().length, {2, 3}, task_.intro(), needles, *haystack,
                                bytes_as_tokens);
  }
  NeedleTask task_{NeedleStyle::number, {}};
};

TEST_P(NeedleContexts, FillTheLengthToLessThanOneSentence) {
  const NeedleContext context = build(task_.needles(ten_depths, 1));
  const auto size = static_cast<std::int64_t>(context.tokens.size());
  EXPECT_LE(size, GetParam().length);
  EXPECT_GT(size, GetParam().length - 160);  // the longest sentence
}

TEST_P(NeedleContexts, BeginWithTheIntroAndEndWithALineBreak) {
  const std::string text = text_of(build(task_.needles(ten_depths, 1)).tokens);
  EXPECT_TRUE(text.substr(2).starts_with(task_.intro() + "\n"));
  EXPECT_TRUE(text.ends_with(".\n"));
  EXPECT_FALSE(text.ends_with("\n\n"));
  EXPECT_EQ(text.find("\n "), std::string::npos);
  EXPECT_EQ(text.find("  "), std::string::npos);
}

TEST_P(NeedleContexts, HoldEachNeedleNearItsDepthAtTheRecordedTokens) {
  const std::vector<Needle> needles = task_.needles(ten_depths, 1);
  const NeedleContext context = build(needles);
  ASSERT_EQ(context.needles.size(), needles.size());
  for (std::size_t i = 0; i < needles.size(); ++i) {
    const PlacedNeedle& placed = context.needles[i];
    EXPECT_EQ(placed.needle.key, needles[i].key);
    const std::string text = text_of(context.tokens, placed.tokens);
    EXPECT_NE(text.find(needles[i].sentence), std::string::npos) << text;
    EXPECT_LE(text.size(), needles[i].sentence.size() + 2);
    const double wanted = needles[i].depth / 100 * static_cast<double>(GetParam().length);
    EXPECT_NEAR(static_cast<double>(placed.tokens.begin), wanted, 160);
  }
}

TEST_P(NeedleContexts, AreTheSameForTheSameSeeds) {
  const std::vector<Needle> needles = task_.needles(ten_depths, 1);
  EXPECT_EQ(build(needles).tokens, build(needles).tokens);
}

INSTANTIATE_TEST_SUITE_P(Haystacks, NeedleContexts,
                         testing::Values(ContextCase{"noise", 20000}, ContextCase{"noise", 20001},
                                         ContextCase{"needles", 20000},
                                         ContextCase{"generated", 20000},
                                         ContextCase{"generated", 50001}),
                         [](const auto& info) {
                           return info.param.haystack + std::to_string(info.param.length);
                         });

// Sentences are encoded one by one; that must not show.
TEST_P(NeedleContexts, HaveTheTokensOfTheWholeText) {
  const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(TOPKV_SOURCE_DIR) / "models/needle-14m/tokenizer.json");
  const std::vector<Needle> needles = task_.needles(ten_depths, 1);
  Random random(9);
  const auto haystack =
      make_haystack(GetParam().haystack, 9, [&] { return task_.distractor(random, needles); });
  const NeedleContext context =
      build_needle_context(GetParam().length, {}, task_.intro(), needles, *haystack,
                           [&](std::string_view text) { return tokenizer.encode(text); });
  EXPECT_LE(static_cast<std::int64_t>(context.tokens.size()), GetParam().length);
  EXPECT_EQ(context.tokens, tokenizer.encode(tokenizer.decode(context.tokens)));
  // The question begins a line, so that asking does not change tokens before it either.
  std::vector<Token> asked = context.tokens;
  const std::vector<Token> question = tokenizer.encode(needles[3].question);
  asked.insert(asked.end(), question.begin(), question.end());
  EXPECT_EQ(asked, tokenizer.encode(tokenizer.decode(context.tokens) + needles[3].question));
}

TEST(NeedleContext, NeedlesAtTheVeryEndsStandThere) {
  const NeedleTask task(NeedleStyle::number, {});
  const auto haystack = make_haystack("generated", 1, no_distractor);
  const NeedleContext context = build_needle_context(
      5000, {}, task.intro(), task.needles({0, 100}, 1), *haystack, bytes_as_tokens);
  const std::string text = text_of(context.tokens);
  EXPECT_TRUE(text.starts_with(task.intro() + "\n" + context.needles[0].needle.sentence));
  EXPECT_TRUE(text.ends_with(" " + context.needles[1].needle.sentence + "\n"));
  EXPECT_EQ(context.needles[1].tokens.end, static_cast<std::int64_t>(context.tokens.size()));
  EXPECT_LE(context.tokens.size(), 5000U);
}

TEST(NeedleContext, NeedlesThatAloneAreTooLongAreRefused) {
  const NeedleTask task(NeedleStyle::number, {});
  const auto haystack = make_haystack("noise", 1, no_distractor);
  expect_error<InvalidArgument>(
      [&] {
        build_needle_context(300, {}, task.intro(), task.needles(ten_depths, 1), *haystack,
                             bytes_as_tokens);
      },
      "a context of 300 tokens", {"10 needles", "--depths"});
}

/// Samples of a grid at depths 5, 50 and 95, of 4096 bytes.
std::vector<EvalSample> grid_samples(const NeedleGrid& grid) {
  const EvalTask task = needle_grid_task({bytes_as_tokens, {}}, grid);
  std::vector<EvalSample> samples;
  for (std::int64_t number = 0; number < task.most; ++number) {
    samples.push_back(task.make({4096, 0, number}));
  }
  return samples;
}

NeedleGrid small_grid() {
  return {.task = NeedleTask(NeedleStyle::number, {}),
          .depths = {5, 50, 95},
          .haystack = "generated",
          .predict = 12,
          .seed = 7};
}

TEST(NeedleGrids, AskForEveryNeedleOfOneContext) {
  const std::vector<EvalSample> samples = grid_samples(small_grid());
  ASSERT_EQ(samples.size(), 3U);
  std::int64_t end = 0;
  for (const EvalSample& sample : samples) {
    EXPECT_EQ(sample.context, samples.front().context);
    EXPECT_GE(sample.needle.begin, end);
    end = sample.needle.end;
    const std::string needle = text_of(sample.context, sample.needle);
    EXPECT_NE(needle.find(sample.key), needle.npos) << needle;
    EXPECT_NE(needle.find(sample.references.front()), needle.npos) << needle;
    EXPECT_NE(sample.question.find(sample.key), sample.question.npos) << sample.question;
    EXPECT_EQ(sample.predict, 12);
    EXPECT_TRUE(sample.one_line);
  }
}

TEST(NeedleGrids, ThatAreSeparateHaveAContextOfEachNeedle) {
  NeedleGrid grid = small_grid();
  grid.separate = true;
  const std::vector<EvalSample> samples = grid_samples(grid);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::string text = text_of(samples[i].context);
    for (std::size_t other = 0; other < samples.size(); ++other) {
      EXPECT_EQ(text.find(samples[other].key) != text.npos, i == other) << i << " " << other;
    }
    EXPECT_NEAR(static_cast<double>(samples[i].needle.begin), 40.96 * grid.depths[i], 200);
  }
}

TEST(NeedleGrids, CountLengthsAsContextsOrAsRuler) {
  NeedleGrid grid = small_grid();
  const TaskTokens tokens{bytes_as_tokens, {}};
  const std::int64_t question = grid.question_tokens(tokens);
  EXPECT_EQ(needle_grid_task(tokens, grid).beyond, question + 12);
  EXPECT_GT(std::ssize(grid_samples(grid).front().context), 4096 - 200);
  grid.ruler_length = true;
  EXPECT_EQ(needle_grid_task(tokens, grid).beyond, 12 - 128);
  for (const EvalSample& sample : grid_samples(grid)) {
    EXPECT_LE(std::ssize(sample.context) + std::ssize(sample.question) + 128, 4096);
  }
}

}  // namespace
}  // namespace topkv
