// NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py.

#include <fmt/format.h>

#include <algorithm>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/ruler.h"

namespace topkv {
namespace {

constexpr std::int64_t vt_tokens = 30;
constexpr std::int64_t num_hops = 4;
constexpr std::int64_t example_length = 500;  ///< tokens that the example takes at most
constexpr std::int64_t least_noises = num_hops + 1;

struct Chain {
  std::vector<std::string> names;
  std::string value;
};

Chain random_chain(Random& random, int letters) {
  Chain chain;
  chain.value = fmt::format("{}", random.between(10000, 99998));
  while (std::ssize(chain.names) < num_hops + 1) {
    std::string name;
    for (int i = 0; i < letters; ++i) name += static_cast<char>('A' + random.between(0, 25));
    if (std::ranges::find(chain.names, name) == chain.names.end()) chain.names.push_back(name);
  }
  return chain;
}

/// The noise with the chain's assignments in it, in their order.
std::string hide_chain(const Chain& chain, std::int64_t noises, Random& random) {
  std::vector<std::int64_t> places = draw(random, noises, std::ssize(chain.names));
  std::ranges::sort(places);
  const std::string noise = ruler_noise();
  std::string text;
  const auto add = [&](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
  std::size_t next = 0;
  for (std::int64_t i = 0; i < noises; ++i) {
    for (; next < places.size() && places[next] == i; ++next) {
      // Behind an assignment of a variable RULER leaves a space.
      add(next == 0 ? fmt::format("VAR {} = {}", chain.names[0], chain.value)
                    : fmt::format("VAR {} = VAR {} ", chain.names[next], chain.names[next - 1]));
    }
    add(noise);
  }
  return text;
}

std::string context_text(const Chain& chain, std::int64_t noises, Random& random) {
  return fmt::format(
      "Memorize and track the chain(s) of variable assignment hidden in the following "
      "text.\n\n{}\n",
      hide_chain(chain, noises, random));
}

std::string question_text(const Chain& chain) {
  return fmt::format(
      "Question: Find all variables that are assigned the value {0} in the text above. Answer: "
      "According to the chain(s) of variable assignment in the text above, {1} variables are "
      "assgined the value {0}, they are: ",  // as RULER spells it
      chain.value, num_hops + 1);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

/// A task that is solved, with a line break behind it: as long as fits in RULER's 500 tokens.
std::string example_text(const TaskTokens& tokens, std::uint64_t seed) {
  Random random(seed);
  const Chain chain = random_chain(random, 3);
  const auto text = [&](std::int64_t noises) {
    Random places(mix_seed(seed, 1));
    return context_text(chain, noises, places) + question_text(chain);
  };
  const std::int64_t noises = most_units(example_length, least_noises, 1, [&](std::int64_t count) {
    return tokens.count(text(count));
  });
  return fmt::format("{} {}\n", text(noises), joined(chain.names));
}

EvalSample make_vt_sample(const SampleOrder& order, const TaskTokens& tokens) {
  Random random(order.seed);
  const Chain chain = random_chain(random, 5);
  EvalSample sample;
  sample.predict = vt_tokens;
  sample.question = question_text(chain);
  sample.references = chain.names;
  const std::string example = example_text(tokens, mix_seed(order.seed, 1));
  const auto text = [&](std::int64_t noises) {
    Random places(mix_seed(order.seed, 2));
    return fmt::format("{}\n{}", example, context_text(chain, noises, places));
  };
  const std::int64_t noises =
      most_units(tokens.room(order.length, sample.question, sample.predict), least_noises, 1,
                 [&](std::int64_t count) { return tokens.count(text(count)); });
  sample.context = tokens.context(text(noises));
  return sample;
}

}  // namespace

EvalTask ruler_vt_task(const TaskTokens& tokens) {
  EvalTask task;
  task.name = task.seed_name = "vt";
  task.haystack = "noise";
  task.make = [tokens](const SampleOrder& order) { return make_vt_sample(order, tokens); };
  return task;
}

}  // namespace topkv
