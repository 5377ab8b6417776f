// Tasks beside RULER's: passkey, repetition, tables and questions about files.

#include "src/eval/tasks/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

#include "tests/eval/tokens.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class Tasks : public testing::Test {
 protected:
  EvalTask task(const std::string& name, const TaskSources& sources = {}) {
    return make_eval_tasks({name}, tokens_of(words_), sources).front();
  }
  EvalSample made(const EvalTask& task, std::int64_t length, std::int64_t number = 0) {
    return task.make({length, sample_seed(42, task, length, number), number});
  }
  std::string text_of(const EvalSample& sample) { return words_.text(sample.context).substr(3); }
  void expect_filled(const EvalSample& sample, std::int64_t length, std::int64_t unit) {
    const std::int64_t whole =
        std::ssize(sample.context) + std::ssize(words_.encode(sample.question)) + sample.predict;
    EXPECT_LE(whole, length);
    EXPECT_GT(whole, length - unit);
  }
  WordTokens words_;
};

TEST(TaskNames, StandForOneOrSeveralAndAreKeptOnce) {
  EXPECT_EQ(parse_tasks("vt"), std::vector<std::string>{"vt"});
  EXPECT_EQ(parse_tasks("tables,passkey,tables_sum"),
            (std::vector<std::string>{"tables_count", "tables_sum", "tables_hop", "passkey"}));
  EXPECT_EQ(parse_tasks("ruler").size(), 11U);
  expect_error<InvalidArgument>([] { parse_tasks("ruler,nial"); }, "'nial' is no task",
                                {"ruler", "niah_single_1", "qa"});
  expect_error<InvalidArgument>([] { parse_tasks(""); }, "'' is no task", {});
}

TEST_F(Tasks, APasskeyIsHiddenInNoise) {
  const EvalSample sample = made(task("passkey"), 1000);
  expect_filled(sample, 1000, 20);
  const std::string& key = sample.references.front();
  EXPECT_TRUE(std::regex_match(key, std::regex("[1-9][0-9]{4}")));
  std::string text = text_of(sample);
  const std::string needle =
      "The pass key is " + key + ". Remember it. " + key + " is the pass key.\n";
  ASSERT_NE(text.find(needle), text.npos);
  text.erase(text.find(needle), needle.size());
  std::string expected =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
      "them. I will quiz you about the important information there.\n";
  while (expected.size() < text.size()) {
    expected +=
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
        "again.\n";
  }
  EXPECT_EQ(text, expected);
  EXPECT_EQ(sample.question, "What is the pass key? The pass key is");
}

TEST_F(Tasks, BothProtocolsOfAPasskeyHaveTheSameTexts) {
  const EvalTask at_once = task("passkey");
  const EvalTask steps = task("passkey_steps");
  EXPECT_FALSE(at_once.steps);
  EXPECT_TRUE(steps.steps);
  EXPECT_EQ(made(at_once, 700).context, made(steps, 700).context);
  EXPECT_NE(made(at_once, 700).context, made(steps, 700, 1).context);
}

TEST_F(Tasks, APassageOfTheContextIsToBeRepeated) {
  const TempDirectory directory;
  std::string essay;
  for (int i = 0; i < 400; ++i) essay += "Sentence " + std::to_string(i) + " is like no other. ";
  directory.write("a.txt", essay);
  for (const std::string& essays : {std::string(), directory.path().string()}) {
    const EvalTask one = task("repetition", {essays, {}, {}});
    EXPECT_EQ(one.scoring, Scoring::match);
    for (std::int64_t number = 0; number < 20; ++number) {
      const EvalSample sample = made(one, 1500, number);
      expect_filled(sample, 1500, 60);
      ASSERT_TRUE(sample.question.starts_with("\n"));
      const std::string prompt = sample.question.substr(1);
      const std::string& reference = sample.references.front();
      EXPECT_NE(text_of(sample).find(prompt + reference), std::string::npos);
      EXPECT_GE(prompt.size(), 128U);
      EXPECT_LT(prompt.size(), 128U + 32U);
      EXPECT_TRUE(reference.starts_with(" "));
      EXPECT_GE(reference.size(), 256U);
      EXPECT_LT(reference.size(), 256U + 32U);
    }
  }
}

/// The cells of the lines of a table.
std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream stream(line);
    std::vector<std::string> cells;
    for (std::string word; stream >> word;) {
      if (word != "|") cells.push_back(word);
    }
    rows.push_back(cells);
  }
  return rows;
}

TEST_F(Tasks, TablesAreAnsweredByCountingThemAgain) {
  for (const std::string name : {"tables_count", "tables_sum", "tables_hop"}) {
    for (std::int64_t number = 0; number < 10; ++number) {
      const EvalSample sample = made(task(name), 3000, number);
      expect_filled(sample, 3000, 40);
      const std::string text = text_of(sample);
      const std::string customers_head = "| customer | town |\n| --- | --- |\n";
      const std::string orders_head =
          "| order | customer | item | pieces |\n| --- | --- | --- | --- |\n";
      const std::size_t customers = text.find(customers_head);
      const std::size_t orders = text.find(orders_head);
      ASSERT_NE(customers, text.npos);
      ASSERT_NE(orders, text.npos);
      std::map<std::string, std::string> towns;
      for (const auto& row : rows_of(text.substr(customers + customers_head.size(),
                                                 orders - customers - customers_head.size()))) {
        if (row.size() == 2) towns[row[0]] = row[1];
      }
      std::map<std::string, std::int64_t> counts, sums;
      std::map<std::string, std::string> homes;
      for (const auto& row : rows_of(text.substr(orders + orders_head.size()))) {
        if (row.size() != 4) continue;
        ++counts[row[2]];
        sums[row[1]] += std::stoi(row[3]);
        EXPECT_TRUE(homes.emplace(row[0], towns.at(row[1])).second) << "an order twice";
      }
      EXPECT_GT(homes.size(), 200U);
      std::smatch match;
      const std::string expected = [&]() -> std::string {
        if (std::regex_match(sample.question, match,
                             std::regex("Question: How many rows of the table of orders have the "
                                        "item ([a-z]+)\\? Answer: The number of rows with the item "
                                        "\\1 is"))) {
          return std::to_string(counts.at(match[1].str()));
        }
        if (std::regex_match(sample.question, match,
                             std::regex("Question: How many pieces did ([a-z-]+) order in all\\? "
                                        "Answer: The sum of the pieces ordered by \\1 is"))) {
          return std::to_string(sums.at(match[1].str()));
        }
        if (std::regex_match(sample.question, match,
                             std::regex("Question: In which town does the customer of order "
                                        "([0-9]+) live\\? Answer: The customer of order \\1 lives "
                                        "in"))) {
          return homes.at(match[1].str());
        }
        return "another question";
      }();
      EXPECT_EQ(sample.references, std::vector<std::string>{expected}) << sample.question;
    }
  }
}

class Questions : public Tasks {
 protected:
  EvalTask qa(const std::string& lines, const std::vector<std::string>& files = {"text.txt"}) {
    directory_.write("text.txt", "The capital of Ruritania is Strelsau.");
    directory_.write("other.txt", "Zenda is a castle.");
    TaskSources sources;
    for (const std::string& file : files) sources.files.push_back(directory_.path() / file);
    sources.questions = directory_.write("asked.jsonl", lines);
    return task("qa", sources);
  }
  TempDirectory directory_;
};

TEST_F(Questions, AreAskedInRulersTemplate) {
  const EvalTask one =
      qa("{\"question\": \"What is the capital?\", \"answers\": [\"Strelsau\"]}\n\n"
         "{\"question\": \"What is Zenda?\", \"answers\": [\"a castle\"], \"context_file\": "
         "\"other.txt\"}\n{\"question\": \"Summarise it.\"}\n{\"question\": \"In a word?\", "
         "\"tokens\": 3}",
         {"text.txt", "other.txt"});
  EXPECT_EQ(one.most, 4);
  EXPECT_TRUE(one.f1);
  EXPECT_EQ(one.scoring, Scoring::any);
  const EvalSample first = made(one, 1000);
  EXPECT_EQ(text_of(first),
            "Answer the question based on the given documents. Only give me the answer and do not "
            "output any other words.\n\nThe following are given documents.\n\nDocument 1:\nThe "
            "capital of Ruritania is Strelsau.\n\nDocument 2:\nZenda is a castle.\n\n");
  EXPECT_EQ(first.question,
            "Answer the question based on the given documents. Only give me the answer and do not "
            "output any other words.\n\nQuestion: What is the capital? Answer:");
  EXPECT_EQ(first.predict, 32);
  EXPECT_TRUE(first.one_line);
  EXPECT_TRUE(text_of(made(one, 1000, 1)).ends_with("\n\nDocument 1:\nZenda is a castle.\n\n"));
  const EvalSample summary = made(one, 1000, 2);
  EXPECT_TRUE(summary.references.empty());
  EXPECT_EQ(summary.predict, 256);
  EXPECT_FALSE(summary.one_line);
  EXPECT_EQ(made(one, 1000, 3).predict, 3);
}

TEST_F(Questions, TellWhatIsWrongWithThem) {
  const std::string asked = (directory_.path() / "asked.jsonl").string();
  expect_error<FileError>([&] { qa("\n"); }, asked, {"holds no question", "\"answers\""});
  expect_error<FileError>([&] { qa("{\"question\": \"a\"}\n{\"answers\": []}"); },
                          asked + ": line 2", {"question"});
  expect_error<FileError>([&] { qa("{\"question\": \"a\", \"answers\": [\"\"]}"); },
                          asked + ": line 1", {"answers", "not empty"});
  expect_error<FileError>([&] { qa("{\"question\": 3}"); }, asked + ": line 1", {"question"});
  expect_error<FileError>([&] { qa("{\"question\""); }, asked + ": line 1", {});
  expect_error<FileError>([&] { qa("{\"question\": \"a\", \"context_file\": \"none.txt\"}"); },
                          (directory_.path() / "none.txt").string(), {});
  expect_error<InvalidArgument>([&] { qa("{\"question\": \"a\"}", {}); }, "task qa needs a text",
                                {"question 1", "--file"});
  expect_error<InvalidArgument>([&] { task("qa"); }, "task qa needs questions", {"--questions"});
}

TEST_F(Questions, TextIsNotCut) {
  const EvalTask one = qa("{\"question\": \"a\", \"answers\": [\"b\"]}");
  expect_error<InvalidArgument>([&] { made(one, 80); }, "the text of question 1 takes",
                                {"length of 80", "longer length"});
}

}  // namespace
}  // namespace topkv
