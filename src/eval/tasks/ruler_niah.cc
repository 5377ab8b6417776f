// NVIDIA/RULER, scripts/data/synthetic/niah.py.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/ruler.h"
#include "src/eval/tasks/wonderwords.h"

namespace topkv {
namespace {

constexpr std::int64_t niah_tokens = 128;
constexpr std::int64_t depth_count = 40;

enum class Hay : std::uint8_t { noise, essay, needle };

/// A task of synthetic.yaml.
struct NiahTask {
  const char* name;
  Hay hay;
  bool uuid_keys;
  bool uuid_values;
  std::int64_t keys;     ///< num_needle_k
  std::int64_t values;   ///< num_needle_v, of each key
  std::int64_t queries;  ///< num_needle_q
};

constexpr NiahTask tasks[] = {
    {"niah_single_1", Hay::noise, false, false, 1, 1, 1},
    {"niah_single_2", Hay::essay, false, false, 1, 1, 1},
    {"niah_single_3", Hay::essay, false, true, 1, 1, 1},
    {"niah_multikey_1", Hay::essay, false, false, 4, 1, 1},
    {"niah_multikey_2", Hay::needle, false, false, 1, 1, 1},
    {"niah_multikey_3", Hay::needle, true, true, 1, 1, 1},
    {"niah_multivalue", Hay::essay, false, false, 1, 4, 1},
    {"niah_multiquery", Hay::essay, false, false, 4, 1, 4},
};

/// What is hidden and asked for in one sample.
struct Hidden {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;  ///< of each key
  std::vector<std::string> needles;              ///< in the order of the context
  std::string type;                              ///< "number" or "uuid"
};

std::string random_key(const NiahTask& task, Random& random) {
  return task.uuid_keys ? random_uuid(random) : random_wonder_key(random);
}

std::string random_value(const NiahTask& task, Random& random) {
  return task.uuid_values ? random_uuid(random) : random_number(random);
}

/// Draws until it is none of those that are there: RULER's lists are so long that it need not look.
std::string fresh(const std::function<std::string()>& draw_one, const Hidden& hidden) {
  const auto taken = [&](const std::string& word) {
    if (std::ranges::find(hidden.keys, word) != hidden.keys.end()) return true;
    return std::ranges::any_of(hidden.values, [&](const std::vector<std::string>& values) {
      return std::ranges::find(values, word) != values.end();
    });
  };
  std::string word = draw_one();
  while (taken(word)) word = draw_one();
  return word;
}

Hidden hide(const NiahTask& task, Random& random) {
  Hidden hidden;
  hidden.type = task.uuid_values ? "uuid" : "number";
  for (std::int64_t k = 0; k < task.keys; ++k) {
    hidden.keys.push_back(fresh([&] { return random_key(task, random); }, hidden));
    hidden.values.emplace_back();
    for (std::int64_t v = 0; v < task.values; ++v) {
      hidden.values.back().push_back(fresh([&] { return random_value(task, random); }, hidden));
      hidden.needles.push_back(
          ruler_needle(hidden.type, hidden.keys.back(), hidden.values.back().back()));
    }
  }
  shuffle(random, hidden.needles);
  return hidden;
}

/// Needles between sentences of an essay, at some of RULER's 40 depths.
std::string essay_context(const std::vector<std::string>& sentences, const Hidden& hidden,
                          Random& random) {
  const auto count = static_cast<std::int64_t>(hidden.needles.size());
  std::vector<std::int64_t> places;
  for (const std::int64_t number : draw(random, depth_count, count)) {
    const auto depth = std::lround(100.0 * static_cast<double>(number) / (depth_count - 1));
    places.push_back(std::ssize(sentences) * depth / 100);
  }
  std::ranges::sort(places);
  return with_inserted(sentences, hidden.needles, places);
}

/// Needles between lines, no two of them in the same place.
std::string line_context(std::vector<std::string> lines, const Hidden& hidden, Random& random) {
  std::vector<std::int64_t> places =
      draw(random, std::ssize(lines), static_cast<std::int64_t>(hidden.needles.size()));
  std::ranges::sort(places, std::greater<>());
  for (std::size_t i = 0; i < places.size(); ++i) {
    lines.insert(lines.begin() + places[i], hidden.needles[i]);
  }
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

std::vector<std::string> distractors(const NiahTask& task, const Hidden& hidden, std::int64_t count,
                                     Random& random) {
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string key = fresh([&] { return random_key(task, random); }, hidden);
    const std::string value = fresh([&] { return random_value(task, random); }, hidden);
    lines.push_back(ruler_needle(hidden.type, key, value));
  }
  return lines;
}

/// "a", "a, and b", "a, b, and c".
std::string listed(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (std::size_t i = 1; i + 1 < words.size(); ++i) text += ", " + words[i];
  return words.size() > 1 ? text + ", and " + words.back() : text;
}

EvalSample make_sample(const NiahTask& task, const SampleOrder& order, const TaskTokens& tokens,
                       const ProseSource& essays) {
  Random random(order.seed);
  const Hidden hidden = hide(task, random);
  EvalSample sample;
  sample.predict = niah_tokens;
  std::vector<std::string> asked;
  for (const std::int64_t k : draw(random, task.keys, task.queries)) {
    const auto key = static_cast<std::size_t>(k);
    asked.push_back(hidden.keys[key]);
    sample.references.insert(sample.references.end(), hidden.values[key].begin(),
                             hidden.values[key].end());
  }
  const bool one = task.queries * task.values == 1;
  sample.question = ruler_question(hidden.type, listed(asked), one);

  const std::shared_ptr<Prose> prose = essays.prose(mix_seed(order.seed, 1));
  const auto text = [&](std::int64_t units) {
    Random places(mix_seed(order.seed, 2));
    std::string context;
    if (task.hay == Hay::essay) {
      context = essay_context(prose->words(units), hidden, places);
    } else if (task.hay == Hay::noise) {
      context = line_context({static_cast<std::size_t>(units), ruler_noise()}, hidden, places);
    } else {
      Random others(mix_seed(order.seed, 3));
      context = line_context(distractors(task, hidden, units, others), hidden, places);
    }
    return fmt::format("{}\n{}\n", ruler_intro(hidden.type, one), context);
  };
  const std::int64_t units =
      most_units(tokens.room(order.length, sample.question, sample.predict),
                 static_cast<std::int64_t>(hidden.needles.size()), 1,
                 [&](std::int64_t count) { return tokens.count(text(count)); });
  sample.context = tokens.context(text(units));
  return sample;
}

}  // namespace

std::string ruler_noise() { return make_haystack("noise", 0, {})->next(); }

std::vector<EvalTask> ruler_needle_tasks(const TaskTokens& tokens, const ProseSource& essays) {
  std::vector<EvalTask> all;
  for (const NiahTask& task : tasks) {
    EvalTask one;
    one.name = one.seed_name = task.name;
    one.haystack = task.hay == Hay::noise    ? "noise"
                   : task.hay == Hay::needle ? "needles"
                                             : essays.name();
    one.make = [task, tokens, essays](const SampleOrder& order) {
      return make_sample(task, order, tokens, essays);
    };
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace topkv
