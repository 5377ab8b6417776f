// RULER's tasks: wording written out by hand from NVIDIA/RULER's scripts/data/synthetic, numbers of
// needles and words from its synthetic.yaml, and lengths.

#include "src/eval/tasks/ruler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/tasks.h"
#include "tests/eval/tokens.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

const std::string noise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

const std::vector<std::string> ruler_names = parse_tasks("ruler");

struct Made {
  EvalSample sample;
  std::string text;  ///< of the context, without its beginning
};

class Ruler : public testing::Test {
 protected:
  EvalTask task(const std::string& name, const std::string& essays = "") {
    return make_eval_tasks({name}, tokens_of(words_), {essays, {}, {}}).front();
  }
  Made made(const std::string& name, std::int64_t length, std::int64_t number = 0) {
    const EvalTask one = task(name);
    Made made;
    made.sample = one.make({length, sample_seed(42, one, length, number), number});
    made.text = text_of(made.sample);
    return made;
  }
  std::string text_of(const EvalSample& sample) {
    const std::string text = words_.text(sample.context);
    EXPECT_TRUE(text.starts_with("<s>"));
    return text.substr(3);
  }
  WordTokens words_;
};

std::vector<std::string> text_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::int64_t times(const std::string& text, const std::string& part) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST_F(Ruler, AllElevenTasksHaveTheirNames) {
  EXPECT_EQ(ruler_names,
            (std::vector<std::string>{"niah_single_1", "niah_single_2", "niah_single_3",
                                      "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
                                      "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"}));
}

TEST_F(Ruler, SamplesFillTheLengthWithQuestionAndAnswer) {
  // The largest unit of a task: 18 words of noise, a sentence, three times a word and its number,
  // a 32nd of the words.
  for (const std::string& name : ruler_names) {
    for (const std::int64_t length : {1200, 4096, 5000}) {
      const Made one = made(name, length);
      const std::int64_t whole = std::ssize(one.sample.context) +
                                 std::ssize(words_.encode(one.sample.question)) +
                                 one.sample.predict;
      EXPECT_LE(whole, length) << name;
      EXPECT_GT(whole, length - std::max<std::int64_t>(20, name == "fwe" ? length / 32 + 10 : 0))
          << name;
    }
  }
}

TEST_F(Ruler, TokensToGenerateAreRulers) {
  const std::map<std::string, std::int64_t> predict = {{"vt", 30}, {"cwe", 120}, {"fwe", 50}};
  for (const std::string& name : ruler_names) {
    const auto at = predict.find(name);
    EXPECT_EQ(made(name, 2000).sample.predict, at == predict.end() ? 128 : at->second) << name;
    EXPECT_EQ(task(name).scoring, Scoring::all);
    EXPECT_FALSE(made(name, 2000).sample.one_line) << name;
  }
}

TEST_F(Ruler, SeedsGiveSamplesOfTheirOwn) {
  for (const std::string& name : ruler_names) {
    const Made one = made(name, 2000);
    EXPECT_EQ(one.sample.context, made(name, 2000).sample.context) << name;
    EXPECT_NE(one.sample.references, made(name, 2000, 1).sample.references) << name;
    EXPECT_NE(one.sample.references, made(name, 2001).sample.references) << name;
  }
  const EvalTask first = task("niah_single_1");
  EXPECT_NE(sample_seed(42, first, 4096, 0), sample_seed(42, task("niah_single_2"), 4096, 0));
  EXPECT_NE(sample_seed(42, first, 4096, 0), sample_seed(43, first, 4096, 0));
}

TEST_F(Ruler, ReferencesAreInTheContext) {
  for (const std::string& name : ruler_names) {
    const Made one = made(name, 4096);
    ASSERT_FALSE(one.sample.references.empty());
    for (const std::string& reference : one.sample.references) {
      EXPECT_NE(one.text.find(reference), one.text.npos) << name << " " << reference;
      EXPECT_EQ(one.sample.question.find(reference), one.text.npos) << name << " " << reference;
    }
  }
}

TEST_F(Ruler, ANumberInNoiseIsWrittenAsInRuler) {
  const Made one = made("niah_single_1", 330);
  ASSERT_EQ(one.sample.references.size(), 1U);
  const std::string& value = one.sample.references.front();
  std::smatch match;
  ASSERT_TRUE(std::regex_match(
      one.sample.question, match,
      std::regex("What is the special magic number for ([^?]+-[^?]+) mentioned in the provided "
                 "text\\? The special magic number for \\1 mentioned in the provided text is")));
  EXPECT_TRUE(std::regex_match(value, std::regex("[1-9][0-9]{6}")));
  const std::string needle =
      "One of the special magic numbers for " + match[1].str() + " is: " + value + ".";
  std::string expected =
      "A special magic number is hidden within the following text. Make sure to memorize it. I "
      "will quiz you about the number afterwards.\n";
  const std::vector<std::string> lines = text_lines(one.text);
  ASSERT_GE(lines.size(), 4U);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    expected += (lines[i] == needle ? needle : noise) + "\n";
  }
  EXPECT_EQ(one.text, expected);
  EXPECT_EQ(times(one.text, needle), 1);
}

TEST_F(Ruler, TypesAndNumbersOfNeedlesAreThoseOfTheYaml) {
  const std::string uuid = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";
  struct Case {
    std::string name, type, key, value;
    std::int64_t needles;  ///< 0: the haystack is made of needles
    std::size_t references;
  };
  const std::string word = "[^:?,]+-[^:?,]+";
  const std::string number = "[0-9]{7}";
  for (const Case& one : {Case{"niah_single_1", "number", word, number, 1, 1},
                          Case{"niah_single_2", "number", word, number, 1, 1},
                          Case{"niah_single_3", "uuid", word, uuid, 1, 1},
                          Case{"niah_multikey_1", "number", word, number, 4, 1},
                          Case{"niah_multikey_2", "number", word, number, 0, 1},
                          Case{"niah_multikey_3", "uuid", uuid, uuid, 0, 1},
                          Case{"niah_multivalue", "number", word, number, 4, 4},
                          Case{"niah_multiquery", "number", word, number, 4, 4}}) {
    const Made sample = made(one.name, 4096);
    const std::regex needle("One of the special magic " + one.type + "s for " + one.key +
                            " is: " + one.value + "\\.");
    const std::int64_t count =
        std::distance(std::sregex_iterator(sample.text.begin(), sample.text.end(), needle), {});
    const std::int64_t all = times(sample.text, "One of the special magic");
    EXPECT_EQ(count, all) << one.name;
    if (one.needles > 0) {
      EXPECT_EQ(all, one.needles) << one.name;
    } else {
      EXPECT_EQ(all, std::ssize(text_lines(sample.text)) - 1) << one.name;
      EXPECT_GT(all, 100) << one.name;
    }
    EXPECT_EQ(sample.sample.references.size(), one.references) << one.name;
    EXPECT_EQ(
        std::set<std::string>(sample.sample.references.begin(), sample.sample.references.end())
            .size(),
        one.references);
  }
}

TEST_F(Ruler, SeveralValuesAreAskedForInThePlural) {
  const Made values = made("niah_multivalue", 1000);
  EXPECT_TRUE(values.text.starts_with(
      "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
      "I will quiz you about the numbers afterwards.\n"));
  EXPECT_TRUE(std::regex_match(
      values.sample.question,
      std::regex(
          "What are all the special magic numbers for ([^?]+-[^?]+) mentioned in the "
          "provided text\\? The special magic numbers for \\1 mentioned in the provided text "
          "are")));
  const Made queries = made("niah_multiquery", 1000);
  std::smatch match;
  const std::string word = "[^:?,]+-[^:?,]+";
  ASSERT_TRUE(std::regex_match(
      queries.sample.question, match,
      std::regex("What are all the special magic numbers for (" + word + "), (" + word + "), (" +
                 word + "), and (" + word +
                 ") mentioned in the provided text\\? The special magic numbers for \\1, \\2, \\3, "
                 "and \\4 mentioned in the provided text are")));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(times(queries.text,
                    ruler_needle("number", match[i + 1].str(), queries.sample.references[i])),
              1);
  }
}

TEST_F(Ruler, EssaysAreTheTextsOfTheDirectoryFromTheirBeginning) {
  const TempDirectory directory;
  directory.write("a.txt", "One is here. Two is there!  Three\nis far.");
  const EvalTask one = task("niah_single_2", directory.path().string());
  EXPECT_EQ(one.haystack, directory.path().string());
  const EvalSample sample = one.make({230, 7, 0});
  std::string text = text_of(sample);
  std::smatch key;
  ASSERT_TRUE(std::regex_search(sample.question, key, std::regex("for (.+?) mentioned")));
  const std::string needle = ruler_needle("number", key[1].str(), sample.references.front());
  ASSERT_EQ(times(text, needle), 1);
  // Without needle and introduction: whole sentences, and the last one cut off.
  text.erase(text.find(needle), needle.size() + 1);
  text = text.substr(text.find('\n') + 1);
  std::string essay;
  for (int i = 0; i < 20; ++i) essay += "One is here. Two is there! Three is far. ";
  text.pop_back();
  if (text.ends_with(' ')) text.pop_back();
  EXPECT_TRUE(essay.starts_with(text)) << text;
  EXPECT_GT(text.size(), 100U);
}

TEST_F(Ruler, AChainOfVariablesIsWrittenAsInRuler) {
  const Made one = made("vt", 1000);
  std::smatch match;
  ASSERT_TRUE(std::regex_match(
      one.sample.question, match,
      std::regex(
          "Question: Find all variables that are assigned the value ([0-9]{5}) in the text "
          "above\\. Answer: According to the chain\\(s\\) of variable assignment in the text "
          "above, 5 variables are assgined the value \\1, they are: ")));
  const std::vector<std::string>& names = one.sample.references;
  ASSERT_EQ(names.size(), 5U);
  for (const std::string& name : names) {
    EXPECT_TRUE(std::regex_match(name, std::regex("[A-Z]{5}"))) << name;
  }
  const std::string begin =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  // The example comes first, with an empty line behind it.
  ASSERT_TRUE(one.text.starts_with(begin));
  const std::size_t second = one.text.find(begin, 1);
  ASSERT_NE(second, one.text.npos);
  EXPECT_EQ(one.text.substr(second - 2, 2), "\n\n");
  std::string expected = begin;
  std::size_t next = 0;
  for (const std::string& line : text_lines(one.text.substr(second + begin.size()))) {
    std::string assignment = "VAR " + names[std::min<std::size_t>(next, 4)] + " = ";
    assignment +=
        next == 0 ? match[1].str() : "VAR " + names[std::min<std::size_t>(next, 5) - 1] + " ";
    const bool assigns = next < 5 && line == assignment;
    next += assigns ? 1 : 0;
    expected += (assigns ? assignment : noise) + "\n";
  }
  EXPECT_EQ(next, 5U);
  EXPECT_EQ(one.text.substr(second), expected);

  const std::string example = one.text.substr(0, second);
  EXPECT_LE(std::ssize(words_.encode(example)), 500 + 6);
  EXPECT_GT(std::ssize(words_.encode(example)), 500 - 25);
  EXPECT_TRUE(std::regex_search(
      example, std::regex("they are:  [A-Z]{3} [A-Z]{3} [A-Z]{3} [A-Z]{3} [A-Z]{3}\n\n$")));
  EXPECT_EQ(times(example, "VAR "), 9);
}

struct Counted {
  std::map<std::string, std::int64_t> words;
  std::set<std::string> with(std::int64_t count) const {
    std::set<std::string> found;
    for (const auto& [word, times] : words) {
      if (times == count) found.insert(word);
    }
    return found;
  }
};

/// Of a numbered list, whose numbers are checked. Some words have a space in them.
Counted counted(const std::string& line) {
  Counted counted;
  std::size_t at = 0;
  for (std::int64_t number = 1; at < line.size(); ++number) {
    const std::string before = std::to_string(number) + ". ";
    EXPECT_EQ(line.substr(at, before.size()), before);
    const std::size_t next = line.find(" " + std::to_string(number + 1) + ". ", at);
    const std::size_t begin = at + before.size();
    ++counted.words[line.substr(begin, std::min(next, line.size()) - begin)];
    at = next == line.npos ? line.size() : next + 1;
  }
  return counted;
}

TEST_F(Ruler, CommonWordsAreCountedAndWrittenAsInRuler) {
  struct Case {
    std::int64_t length, example_words, example_common, example_others, common, others;
  };
  for (const Case& one : {Case{4096, 40, 10, 3, 30, 3}, Case{1500, 20, 3, 1, 6, 1}}) {
    const Made sample = made("cwe", one.length);
    EXPECT_EQ(sample.sample.question,
              "Question: What are the 10 most common words in the above list? Answer: The top 10 "
              "words that appear most often in the list are:");
    const std::vector<std::string> lines = text_lines(sample.text);
    ASSERT_EQ(lines.size(), 5U);
    const std::string intro =
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.";
    EXPECT_EQ(lines[0], intro);
    EXPECT_EQ(lines[3], intro);
    EXPECT_TRUE(lines[2].starts_with(sample.sample.question + " 1. ")) << lines[2];
    const Counted example = counted(lines[1]);
    EXPECT_EQ(std::ssize(example.words), one.example_words);
    EXPECT_EQ(example.with(one.example_common).size(), 10U);
    EXPECT_EQ(std::ssize(example.with(one.example_others)), one.example_words - 10);
    const Counted listed = counted(lines[4]);
    const std::vector<std::string>& references = sample.sample.references;
    EXPECT_EQ(listed.with(one.common), std::set<std::string>(references.begin(), references.end()));
    EXPECT_EQ(listed.with(one.others).size(), listed.words.size() - 10);
    EXPECT_GT(listed.words.size(), 50U);
  }
}

TEST_F(Ruler, CodedWordsFollowZipfAndAreWrittenAsInRuler) {
  const Made one = made("fwe", 4096);
  EXPECT_EQ(one.sample.question,
            "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
            "three most frequently appeared words in the above coded text? Answer: According to "
            "the coded text above, the three most frequently appeared words are:");
  const std::string intro =
      "Read the following coded text and track the frequency of each coded word. Find the three "
      "most frequently appeared coded words. ";
  ASSERT_TRUE(one.text.starts_with(intro));
  EXPECT_TRUE(one.text.ends_with("\n"));
  std::map<std::string, std::int64_t> counts;
  for (const std::string& word : split_words(one.text.substr(intro.size()))) ++counts[word];
  const std::vector<std::string>& references = one.sample.references;
  ASSERT_EQ(references.size(), 3U);
  // count / (rank^2 zeta(2)): the noise, then the three of the answer.
  const double all = static_cast<double>(counts["..."]) * 1.6449;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto rank = static_cast<double>(i + 2);
    EXPECT_NEAR(static_cast<double>(counts[references[i]]), all / (rank * rank) / 1.6449, 2);
    EXPECT_TRUE(std::regex_match(references[i], std::regex("[a-z]{6}")));
  }
  for (const auto& [word, count] : counts) {
    const bool named = word == "..." || std::ranges::find(references, word) != references.end();
    EXPECT_TRUE(named || count < counts[references.back()]) << word;
  }
  EXPECT_LE(std::ssize(counts), 4096 / 50);
}

TEST_F(Ruler, LengthsThatAreTooShortAreRefused) {
  for (const std::string& name : ruler_names) {
    expect_error<InvalidArgument>([&] { made(name, 60); }, "", {"use a longer length"});
  }
}

TEST(Fill, FindsTheMostThatFits) {
  for (const std::int64_t per : {1, 3, 17}) {
    for (const std::int64_t step : {1, 5}) {
      for (std::int64_t room = 60; room < 5000; room += 37) {
        int asked = 0;
        const auto tokens = [&](std::int64_t units) {
          ++asked;
          return 7 + units * per + units / 10;
        };
        const std::int64_t units = most_units(room, 2, step, tokens);
        EXPECT_EQ((units - 2) % step, 0);
        EXPECT_LE(tokens(units), room);
        EXPECT_GT(tokens(units + step), room);
        EXPECT_LT(asked, 25) << per << " " << room;
      }
    }
  }
}

}  // namespace
}  // namespace topkv
