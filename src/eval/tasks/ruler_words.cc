// NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py and freq_words_extraction.py.

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <set>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/ruler.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t common_words = 10;  ///< num_cw
constexpr std::int64_t cwe_tokens = 120;   ///< to generate
constexpr std::int64_t fwe_tokens = 50;
constexpr std::int64_t coded_letters = 6;  ///< of a coded word
constexpr std::int64_t short_length = 4096;

/// A list of so many different words, and how often they stand in it.
struct WordList {
  std::int64_t words;
  std::int64_t common_times;
  std::int64_t other_times;
};

/// Words as "1. one 2. two".
std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
  }
  return text;
}

/// The list as the context has it; `common` is given its common words.
std::string list_text(const WordList& list, std::uint64_t seed, std::vector<std::string>& common) {
  Random random(seed);
  const std::vector<std::string> words = draw_words(random, list.words);
  common.assign(words.begin(), words.begin() + common_words);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool often = static_cast<std::int64_t>(i) < common_words;
    all.insert(all.end(), static_cast<std::size_t>(often ? list.common_times : list.other_times),
               words[i]);
  }
  shuffle(random, all);
  return fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n{}\n",
      numbered(all));
}

constexpr const char* cwe_question =
    "Question: What are the 10 most common words in the above list? Answer: The top 10 words that "
    "appear most often in the list are:";

/// A sample of words drawn with this seed; throws InvalidArgument where they do not fit.
EvalSample cwe_of(std::uint64_t seed, std::int64_t length, const TaskTokens& tokens) {
  const bool short_text = length < short_length;
  EvalSample sample;
  sample.predict = cwe_tokens;
  sample.question = cwe_question;
  std::vector<std::string> example_words;
  std::string example = list_text(short_text ? WordList{20, 3, 1} : WordList{40, 10, 3},
                                  mix_seed(seed, 1), example_words);
  example += fmt::format("{} {}\n", cwe_question, numbered(example_words));
  const auto text = [&](std::int64_t words) {
    const WordList list = short_text ? WordList{words, 6, 1} : WordList{words, 30, 3};
    return example + list_text(list, seed, sample.references);
  };
  const std::int64_t words =
      most_units(tokens.room(length, sample.question, sample.predict), common_words + 1, 1,
                 [&](std::int64_t count) { return tokens.count(text(count)); });
  sample.context = tokens.context(text(words));
  return sample;
}

/// At 4096 tokens the shortest list just fits with some tokenizers, or does not, as words are long:
/// then others are drawn.
EvalSample make_cwe(const SampleOrder& order, const TaskTokens& tokens) {
  constexpr std::uint64_t tries = 20;
  for (std::uint64_t number = 1;; ++number) {
    try {
      const std::uint64_t seed = number == 1 ? order.seed : mix_seed(order.seed, number);
      return cwe_of(seed, order.length, tokens);
    } catch (const InvalidArgument&) {
      if (number == tries) throw;
    }
  }
}

/// Coded words from the most frequent to the least; the first one is noise.
std::vector<std::string> coded_words(std::int64_t count, Random& random) {
  std::set<std::string> different;
  std::vector<std::string> words;
  while (std::ssize(words) < count) {
    std::string word;
    for (std::int64_t i = 0; i < coded_letters; ++i) {
      word += static_cast<char>('a' + random.between(0, 25));
    }
    if (different.insert(word).second) words.push_back(word);
  }
  words.front() = "...";
  return words;
}

constexpr const char* fwe_question =
    "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text? Answer: According to the coded text "
    "above, the three most frequently appeared words are:";

EvalSample make_fwe(const SampleOrder& order, const TaskTokens& tokens) {
  EvalSample sample;
  sample.predict = fwe_tokens;
  sample.question = fwe_question;
  Random random(order.seed);
  // A vocabulary of length / 50, of which four at least have a place in the answer.
  const std::vector<std::string> coded =
      coded_words(std::max<std::int64_t>(4, order.length / 50), random);
  sample.references.assign(coded.begin() + 1, coded.begin() + 4);
  const auto text = [&](std::int64_t count) {
    constexpr double zeta = std::numbers::pi * std::numbers::pi / 6;  // of 2, the exponent
    std::vector<std::string> words;
    for (std::size_t rank = 1; rank <= coded.size(); ++rank) {
      const double share = 1 / (static_cast<double>(rank) * static_cast<double>(rank) * zeta);
      words.insert(words.end(), static_cast<std::size_t>(static_cast<double>(count) * share),
                   coded[rank - 1]);
    }
    Random places(mix_seed(order.seed, 1));
    shuffle(places, words);
    std::string context;
    for (const std::string& word : words) context += (context.empty() ? "" : " ") + word;
    return fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. {}\n",
        context);
  };
  // RULER starts with length / 6 words and goes on in steps of length / 32. Fewer where these are
  // too many already, but enough for the third to be more frequent than the fourth.
  constexpr std::int64_t least_words = 100;
  const std::int64_t step = std::max<std::int64_t>(1, order.length / 32);
  const std::int64_t begin = order.length / coded_letters;
  const std::int64_t least = begin - std::max<std::int64_t>(0, (begin - least_words) / step) * step;
  const std::int64_t count =
      most_units(tokens.room(order.length, sample.question, sample.predict), least, step,
                 [&](std::int64_t words) { return tokens.count(text(words)); });
  sample.context = tokens.context(text(count));
  return sample;
}

}  // namespace

EvalTask ruler_cwe_task(const TaskTokens& tokens) {
  EvalTask task;
  task.name = task.seed_name = "cwe";
  task.haystack = "words";
  task.make = [tokens](const SampleOrder& order) { return make_cwe(order, tokens); };
  return task;
}

EvalTask ruler_fwe_task(const TaskTokens& tokens) {
  EvalTask task;
  task.name = task.seed_name = "fwe";
  task.haystack = "coded words";
  task.make = [tokens](const SampleOrder& order) { return make_fwe(order, tokens); };
  return task;
}

}  // namespace topkv
