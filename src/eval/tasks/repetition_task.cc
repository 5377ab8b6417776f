#include <fmt/format.h>

#include <algorithm>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/prose_task.h"
#include "src/eval/tasks/tasks.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// llminference/tasks/repetition.py of graphcore-research/llm-inference-research.
constexpr std::size_t prompt_length = 128;  // characters, and on to the end of a word
constexpr std::size_t reference_length = 256;
constexpr std::int64_t repetition_tokens = 128;
constexpr std::int64_t spread = 10000;  // sentences of a directory's texts that contexts begin in

constexpr std::size_t least_text = 1024;  // characters, so that there is a choice of passages

/// The end of the word that holds text[at - 1].
std::size_t word_end(const std::string& text, std::size_t at) {
  return std::min(text.find(' ', at), text.size());
}

struct Passage {
  std::string prompt;
  std::string reference;
};

/// A passage that begins with some word of the text. REQUIRES: the text has least_text characters.
Passage random_passage(const std::string& text, Random& random) {
  const auto last = static_cast<std::int64_t>(text.size() - prompt_length - reference_length);
  for (int tries = 0; tries < 1000; ++tries) {
    const std::size_t begin = word_end(text, static_cast<std::size_t>(random.between(0, last))) + 1;
    const std::size_t middle = word_end(text, begin + prompt_length);
    const std::size_t end = word_end(text, middle + reference_length);
    if (end < middle + reference_length) continue;  // the text ends before
    return {text.substr(begin, middle - begin), text.substr(middle, end - middle)};
  }
  throw InvalidArgument(
      "repetition: the text has words so long that there is no passage to repeat; expected prose");
}

EvalSample make_sample(const SampleOrder& order, const TaskTokens& tokens,
                       const ProseSource& essays) {
  Random random(order.seed);
  const std::shared_ptr<Prose> prose = essays.prose(mix_seed(order.seed, 1));
  const std::int64_t first = random.between(0, spread);
  const auto text = [&](std::int64_t sentences) {
    std::string joined;
    for (std::int64_t i = 0; i < sentences; ++i) {
      joined += (i == 0 ? "" : " ") + prose->sentence(first + i);
    }
    return joined;
  };
  std::int64_t least = 1;
  while (text(least).size() < least_text) ++least;
  EvalSample sample;
  sample.predict = repetition_tokens;
  // The passage depends on the text, and the room for the text on the passage: some other one of
  // its length tells about how much, and sentences are taken away should that be too little.
  const std::string whole = text(least);
  const std::string some = whole.substr(0, word_end(whole, prompt_length));
  std::int64_t sentences =
      most_units(tokens.room(order.length, some, sample.predict), least, 1,
                 [&](std::int64_t count) { return tokens.count(text(count)); });
  for (;; --sentences) {
    const std::string context = text(sentences);
    if (sentences < least) tokens.room(0, some, sample.predict);  // throws
    Random places(mix_seed(order.seed, 2));
    const Passage passage = random_passage(context, places);
    sample.question = "\n" + passage.prompt;
    sample.references = {passage.reference};
    sample.context = tokens.context(context);
    const std::int64_t room = tokens.room(order.length, sample.question, sample.predict);
    if (tokens.count(context) <= room) return sample;
  }
}

}  // namespace

EvalTask repetition_task(const TaskTokens& tokens, const ProseSource& essays) {
  return prose_task("repetition", Scoring::match, tokens, essays, make_sample);
}

}  // namespace topkv
