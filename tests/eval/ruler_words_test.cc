// The words of RULER's tasks: whose they are, and what becomes of lists that do not fit.

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "src/eval/tasks/tasks.h"
#include "src/eval/tasks/wonderwords.h"
#include "tests/eval/tokens.h"
#include "topkv/error.h"

namespace topkv {
namespace {

TEST(RulerWords, KeysAreAnAdjectiveAndANounOfWonderwords) {
  const std::set<std::string_view> adjectives(wonder_adjectives().begin(),
                                              wonder_adjectives().end());
  const std::set<std::string_view> nouns(wonder_nouns().begin(), wonder_nouns().end());
  EXPECT_EQ(adjectives.size(), 910U);
  EXPECT_EQ(nouns.size(), 6782U);
  EXPECT_EQ(wonder_words().size(), 8166U);
  WordTokens words;
  const EvalTask task = make_eval_tasks({"niah_multikey_2"}, tokens_of(words), {}).front();
  std::istringstream text(words.text(task.make({4096, 1, 0}).context));
  std::set<std::string> found;
  for (std::string line; std::getline(text, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, std::regex("One of .* for (.+) is: [0-9]{7}\\."))) continue;
    const std::string key = match[1].str();
    const bool is_pair = std::ranges::any_of(adjectives, [&](std::string_view adjective) {
      return key.starts_with(std::string(adjective) + "-") &&
             nouns.contains(std::string_view(key).substr(adjective.size() + 1));
    });
    EXPECT_TRUE(is_pair) << key;
    found.insert(key);
  }
  EXPECT_GT(found.size(), 100U);
}

TEST(RulerWords, CommonWordsAreDrawnAgainWhereTheShortestListDoesNotFit) {
  // So many tokens for a letter that the shortest list of 4096 fits with half of the draws.
  const auto encode = [](std::string_view text) { return std::vector<Token>(text.size() * 4 / 7); };
  const EvalTask task = make_eval_tasks({"cwe"}, {encode, {}}, {}).front();
  for (std::int64_t number = 0; number < 30; ++number) {
    const EvalSample sample = task.make({4096, sample_seed(1, task, 4096, number), number});
    EXPECT_EQ(sample.references.size(), 10U);
    EXPECT_LE(std::ssize(sample.context) + std::ssize(encode(sample.question)) + 120, 4096);
  }
  const auto letters = [](std::string_view text) { return std::vector<Token>(text.size()); };
  EXPECT_THROW(make_eval_tasks({"cwe"}, {letters, {}}, {}).front().make({4096, 1, 0}),
               InvalidArgument);
}

}  // namespace
}  // namespace topkv
