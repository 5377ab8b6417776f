// Records stated in prose, all of which are asked for: each is found by itself, and the model
// writes hundreds of tokens. Text2JSON has such questions about texts of the web; the format of its
// answer, three keys with strings as values, and its score are used here.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "src/eval/tasks/prose_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/tasks.h"

namespace topkv {
namespace {

constexpr std::int64_t record_count = 16;

constexpr std::array<std::string_view, 16> first_names = {
    "Adam", "Berta", "Clara", "David",  "Emma", "Felix", "Greta", "Henry",
    "Ida",  "Jacob", "Laura", "Martin", "Nora", "Oscar", "Paula", "Simon"};
constexpr std::array<std::string_view, 16> last_names = {
    "Abbott", "Barlow", "Carver",  "Dalton",  "Ellis",  "Foster", "Gibson", "Harper",
    "Irving", "Jensen", "Kimball", "Lambert", "Mercer", "Norton", "Parker", "Sutton"};
constexpr std::array<std::string_view, 16> trades = {
    "baker",     "barber",    "carpenter", "doctor",    "fisherman",  "gardener",
    "locksmith", "mason",     "midwife",   "painter",   "pharmacist", "plumber",
    "saddler",   "shoemaker", "tailor",    "watchmaker"};

struct Record {
  std::string name;
  std::string_view trade;
  std::string_view town;
};

std::vector<Record> random_records(Random& random) {
  std::vector<Record> records;
  const auto names = std::ssize(first_names) * std::ssize(last_names);
  for (const std::int64_t number : draw(random, names, record_count)) {
    const auto first = static_cast<std::size_t>(number / std::ssize(last_names));
    const auto last = static_cast<std::size_t>(number % std::ssize(last_names));
    const std::string_view trade = random.pick(trades);
    records.push_back(
        {fmt::format("{} {}", first_names[first], last_names[last]), trade, random.pick(towns())});
  }
  return records;
}

std::string sentence_of(const Record& record, Random& random) {
  const auto& [name, trade, town] = record;
  switch (random.between(0, 3)) {
    case 0:
      return fmt::format("{} is a {} who lives in {}.", name, trade, town);
    case 1:
      return fmt::format("In {} the best {} is {}.", town, trade, name);
    case 2:
      return fmt::format("The {} {} has moved to {}.", trade, name, town);
    default:
      return fmt::format("When people in {} need a {}, they ask for {}.", town, trade, name);
  }
}

std::string json_of(const std::vector<Record>& records) {
  std::string list;
  for (const auto& [name, trade, town] : records) {
    list += fmt::format(R"({}{{"name": "{}", "trade": "{}", "town": "{}"}})",
                        list.empty() ? "" : ", ", name, trade, town);
  }
  return "[" + list + "]";
}

EvalSample text2json_sample(const SampleOrder& order, const TaskTokens& tokens,
                            const ProseSource& essays) {
  Random random(order.seed);
  const std::vector<Record> records = random_records(random);
  std::vector<std::string> sentences;
  for (const Record& record : records) sentences.push_back(sentence_of(record, random));
  EvalSample sample;
  sample.references = {json_of(records)};
  // Half as many tokens again, for an answer that is indented.
  sample.predict = tokens.count(sample.references.front()) * 3 / 2;
  sample.question =
      "List all people whose trade and town the text mentions, in the order of the text. Answer "
      "with one JSON list of objects that have the keys \"name\", \"trade\" and \"town\", and with "
      "nothing else.\nAnswer:";
  fill_with_prose(&sample, order, tokens, essays, sentences, [](const std::string& text) {
    return fmt::format(
        "The text below mentions the trades and towns of some people. I will ask for all of them "
        "afterwards.\n{}\n",
        text);
  });
  return sample;
}

}  // namespace

EvalTask text2json_task(const TaskTokens& tokens, const ProseSource& essays) {
  return prose_task("text2json", Scoring::records, tokens, essays, text2json_sample);
}

}  // namespace topkv
