// A catalogue as a web page, of which some entries are to be written as tab-separated values: each
// of them is found by itself, and the model writes hundreds of tokens. LongProc's HTML to TSV has
// pages of the web; the format of its answer, its filter and its score are used here.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "src/eval/tasks/prose_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/tasks.h"
#include "src/eval/tasks/word_lists.h"

namespace topkv {
namespace {

constexpr std::int64_t asked_entries = 16;
constexpr std::int64_t other_entries = 8;      // that the filter leaves out
constexpr std::int64_t tsv_spare_tokens = 32;  // of an answer that writes more than its rows
constexpr std::string_view tsv_header = "object\ttown\tyear\n";

struct Entry {
  std::string object;
  std::string_view town;
  std::int64_t year;
  bool on_display;
};

std::vector<Entry> random_entries(Random& random) {
  std::vector<Entry> entries;
  for (const std::int64_t noun : draw(random, std::ssize(nouns()), asked_entries + other_entries)) {
    std::string object =
        fmt::format("{} {}", random.pick(adjectives()), nouns()[static_cast<std::size_t>(noun)]);
    object.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(object.front())));
    const std::string_view town = random.pick(towns());
    const std::int64_t year = random.between(1700, 1949);
    entries.push_back({std::move(object), town, year, std::ssize(entries) < asked_entries});
  }
  shuffle(random, entries);
  return entries;
}

/// Two layouts, as pages have that grew over years.
std::string html_of(const Entry& entry, std::int64_t number, Random& random) {
  const std::string_view state = entry.on_display ? "on display" : "in storage";
  if (random.between(0, 1) == 0) {
    return fmt::format(
        R"(<div class="entry" id="n{}"><h3>{}</h3><span class="from">{}</span><time>{}</time><em>{}</em></div>)",
        number, entry.object, entry.town, entry.year, state);
  }
  return fmt::format(
      R"(<dl class="entry" id="n{}"><dt>Object</dt><dd>{}</dd><dt>State</dt><dd>{}</dd><dt>Year</dt><dd>{}</dd><dt>Town</dt><dd>{}</dd></dl>)",
      number, entry.object, state, entry.year, entry.town);
}

EvalSample html_to_tsv_sample(const SampleOrder& order, const TaskTokens& tokens,
                              const ProseSource& essays) {
  Random random(order.seed);
  std::vector<std::string> entries;
  EvalSample sample;
  std::string& table = sample.references.emplace_back(tsv_header);
  for (const Entry& entry : random_entries(random)) {
    entries.push_back(html_of(entry, std::ssize(entries) + 1, random));
    if (entry.on_display)
      table += fmt::format("{}\t{}\t{}\n", entry.object, entry.town, entry.year);
  }
  sample.predict = tokens.count(table) + tsv_spare_tokens;
  sample.question = fmt::format(
      "Extract all objects of the page that are on display as tab-separated values, in the order "
      "of the page, and nothing else. Leave out objects that are in storage.\nTSV:\n{}",
      tsv_header);
  fill_with_prose(
      &sample, order, tokens, essays, entries,
      [](const std::string& page) {
        return fmt::format(
            "Below is a web page with the catalogue of a museum. I will ask for its entries "
            "afterwards.\n<html><body>{}</body></html>\n",
            page);
      },
      [](const std::string& sentence) { return fmt::format("<p>{}</p>", sentence); });
  return sample;
}

}  // namespace

EvalTask html_to_tsv_task(const TaskTokens& tokens, const ProseSource& essays) {
  return prose_task("html_to_tsv", Scoring::tsv_rows, tokens, essays, html_to_tsv_sample);
}

}  // namespace topkv
