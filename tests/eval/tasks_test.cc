// Tasks beside RULER's: passkey, repetition, tables and questions about files.

#include "src/eval/tasks/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
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

/// Turns of a conversation: what is asked for ("poem about tapirs") and the reply.
std::vector<std::pair<std::string, std::string>> turns_of(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> turns;
  std::istringstream lines(text);
  const std::string user = "User: write a ";
  const std::string assistant = "Assistant: ";
  for (std::string asked, reply; std::getline(lines, asked) && std::getline(lines, reply);) {
    EXPECT_TRUE(asked.starts_with(user)) << asked;
    EXPECT_TRUE(reply.starts_with(assistant)) << reply;
    turns.emplace_back(asked.substr(user.size()), reply.substr(assistant.size()));
  }
  return turns;
}

TEST_F(Tasks, AConversationHasTheEqualRequestsAndTheReplyAskedFor) {
  const std::map<std::string, std::size_t> needles = {{"mrcr_2", 2}, {"mrcr_4", 4}, {"mrcr_8", 8}};
  EXPECT_EQ(parse_tasks("mrcr"), (std::vector<std::string>{"mrcr_2", "mrcr_4", "mrcr_8"}));
  for (const auto& [name, count] : needles) {
    const EvalTask one = task(name);
    EXPECT_EQ(one.scoring, Scoring::prefixed_sequence);
    std::set<std::string> asked;
    for (std::int64_t number = 0; number < 5; ++number) {
      const EvalSample sample = made(one, 3000, number);
      expect_filled(sample, 3000, 100);
      EXPECT_TRUE(sample.one_line);
      std::smatch match;
      ASSERT_TRUE(std::regex_match(
          sample.question, match,
          std::regex("User: Prepend ([A-Za-z0-9]{10}) to the ([1-8])(st|nd|rd|th) \\(1 indexed\\) "
                     "(.+)\\. Do not include any other text in your response\\.\nAssistant:")))
          << sample.question;
      asked.insert(match[2].str());
      const std::string text = text_of(sample);
      const std::string head = "Here is the conversation that I will ask about:\n\n";
      ASSERT_NE(text.find(head), text.npos);
      std::vector<std::string> replies;
      std::set<std::string> all;
      const auto turns = turns_of(text.substr(text.find(head) + head.size()));
      for (const auto& [kind, reply] : turns) {
        if (kind == match[4].str()) replies.push_back(reply);
        EXPECT_TRUE(all.insert(reply).second) << "a reply twice";
        EXPECT_EQ(text.find(match[1].str()), text.npos);
      }
      EXPECT_GT(turns.size(), 40U);
      ASSERT_EQ(replies.size(), count);
      const std::string expected = match[1].str() + replies.at(std::stoul(match[2].str()) - 1);
      EXPECT_EQ(sample.references, std::vector<std::string>{expected});
      EXPECT_GE(sample.predict, std::ssize(words_.encode(expected)));
      EXPECT_EQ(score_of(one.scoring, expected, sample.references), 1);
      EXPECT_EQ(score_of(one.scoring, expected.substr(1), sample.references), 0);
      for (const std::string& reply : replies) {
        if (match[1].str() + reply == expected) continue;
        EXPECT_LT(score_of(one.scoring, match[1].str() + reply, sample.references), 0.6);
      }
      EXPECT_EQ(sample.context, made(one, 3000, number).context);
    }
    EXPECT_GT(asked.size(), 1U);
  }
}

TEST_F(Tasks, EqualRequestsAreAllOverAConversation) {
  const EvalTask one = task("mrcr_8");
  std::int64_t first_half = 0;
  for (std::int64_t number = 0; number < 20; ++number) {
    const EvalSample sample = made(one, 4000, number);
    const std::string text = text_of(sample);
    first_half +=
        text.find(sample.references.front().substr(mrcr_prefix)) < text.size() / 2 ? 1 : 0;
  }
  EXPECT_GT(first_half, 3);
  EXPECT_LT(first_half, 17);
}

TEST_F(Tasks, PeopleOfATextAreToBeListedInJson) {
  const EvalTask one = task("text2json");
  EXPECT_EQ(one.scoring, Scoring::records);
  EXPECT_EQ(one.haystack, "generated");
  for (std::int64_t number = 0; number < 5; ++number) {
    const EvalSample sample = made(one, 3000, number);
    expect_filled(sample, 3000, 10);
    EXPECT_FALSE(sample.one_line);
    const std::string text = text_of(sample);
    ASSERT_EQ(sample.references.size(), 1U);
    const nlohmann::json records = nlohmann::json::parse(sample.references.front());
    ASSERT_EQ(records.size(), 16U);
    std::size_t before = 0;
    std::set<std::string> names;
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].size(), 3U);
      const std::string name = records[i].at("name");
      EXPECT_TRUE(names.insert(name).second);
      const std::size_t at = text.find(name);
      ASSERT_NE(at, text.npos);
      EXPECT_EQ(text.find(name, at + 1), text.npos) << "a name twice";
      // The sentence around the name has the other values.
      const std::size_t begin = text.rfind(". ", at) + 2;
      const std::string sentence = text.substr(begin, text.find('.', at) - begin);
      for (const std::string key : {"trade", "town"}) {
        EXPECT_NE(sentence.find(records[i].at(key).get<std::string>()), sentence.npos) << sentence;
      }
      // Evenly: each in its sixteenth of the text, give or take a part of it.
      const double share = static_cast<double>(at) / static_cast<double>(text.size());
      EXPECT_NEAR(share, (static_cast<double>(i) + 0.5) / 16, 0.03);
      EXPECT_GT(at, before);
      before = at;
    }
    EXPECT_EQ(score_of(one.scoring, sample.references.front(), sample.references), 1);
    const auto half = nlohmann::json(records.begin(), records.begin() + 8);
    EXPECT_EQ(score_of(one.scoring, half.dump(2), sample.references), 0.5);
    EXPECT_GE(sample.predict, std::ssize(words_.encode(records.dump(2))));
  }
  EXPECT_NE(made(one, 3000, 0).references, made(one, 3000, 1).references);
  expect_error<InvalidArgument>([&] { made(one, 300); }, "the least text of the task takes",
                                {"use a longer length"});
}

TEST_F(Tasks, EntriesOfAPageAreToBeExtracted) {
  const EvalTask one = task("html_to_tsv");
  EXPECT_EQ(one.scoring, Scoring::tsv_rows);
  EXPECT_EQ(one.haystack, "generated");
  const auto parts_of = [](const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
  };
  for (std::int64_t number = 0; number < 5; ++number) {
    const EvalSample sample = made(one, 4000, number);
    expect_filled(sample, 4000, 10);
    EXPECT_FALSE(sample.one_line);
    const std::string text = text_of(sample);
    EXPECT_NE(text.find("<html>"), text.npos);
    ASSERT_EQ(sample.references.size(), 1U);
    const std::string& table = sample.references.front();
    EXPECT_TRUE(table.starts_with("object\ttown\tyear\n"));
    EXPECT_TRUE(sample.question.ends_with("object\ttown\tyear\n"));
    std::vector<std::string> rows = parts_of(table, '\n');
    rows.erase(rows.begin());
    ASSERT_EQ(rows.size(), 16U);
    // Every entry of the page, by its element, is asked for if and only if it is on display.
    const std::regex entry(R"re(<(div|dl) class="entry".*?</\1>)re");
    std::size_t entries = 0;
    std::size_t asked = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), entry), end; at != end; ++at) {
      const std::string element = at->str();
      const double share = static_cast<double>(at->position()) / static_cast<double>(text.size());
      EXPECT_NEAR(share, (static_cast<double>(entries) + 0.5) / 24, 0.04);
      ++entries;
      if (element.find(">on display<") == element.npos) {
        EXPECT_NE(element.find(">in storage<"), element.npos);
        continue;
      }
      ASSERT_LT(asked, rows.size());
      const std::vector<std::string> cells = parts_of(rows[asked], '\t');
      ++asked;
      ASSERT_EQ(cells.size(), 3U);
      for (const std::string& cell : cells)
        EXPECT_NE(element.find(">" + cell + "<"), element.npos) << element << " lacks " << cell;
    }
    EXPECT_EQ(entries, 24U);
    EXPECT_EQ(asked, 16U);
    EXPECT_EQ(score_of(one.scoring, table, sample.references), 1);
    EXPECT_GE(sample.predict, std::ssize(words_.encode(table)));
  }
  EXPECT_NE(made(one, 4000, 0).references, made(one, 4000, 1).references);
  expect_error<InvalidArgument>([&] { made(one, 220); }, "the least text of the task takes",
                                {"use a longer length"});
}

TEST_F(Tasks, ManyNeedlesOfOneKeyAreSpreadEvenly) {
  const EvalTask one = task("multineedle");
  EXPECT_EQ(one.scoring, Scoring::all);
  for (std::int64_t number = 0; number < 5; ++number) {
    const EvalSample sample = made(one, 4000, number);
    expect_filled(sample, 4000, 10);
    std::smatch match;
    ASSERT_TRUE(std::regex_match(
        sample.question, match,
        std::regex(
            "What are all the special magic numbers for (.+) mentioned in the provided text, "
            "in the order in which they are mentioned\\? The special magic numbers for \\1 "
            "mentioned in the provided text are, in this order,")));
    const std::string text = text_of(sample);
    ASSERT_EQ(sample.references.size(), 32U);
    EXPECT_EQ(std::set<std::string>(sample.references.begin(), sample.references.end()).size(),
              32U);
    for (std::size_t i = 0; i < sample.references.size(); ++i) {
      const std::size_t at = text.find(" One of the special magic numbers for " + match[1].str() +
                                       " is: " + sample.references[i] + ".");
      ASSERT_NE(at, text.npos);
      const double share = static_cast<double>(at) / static_cast<double>(text.size());
      EXPECT_NEAR(share, (static_cast<double>(i) + 0.5) / 32, 0.03);
    }
    std::string half;
    for (std::size_t i = 0; i < 16; ++i) half += sample.references[2 * i] + ", ";
    EXPECT_EQ(score_of(one.scoring, half, sample.references), 0.5);
    EXPECT_EQ(score_of(one.scoring, "\xff\xfe", sample.references), 0);
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
