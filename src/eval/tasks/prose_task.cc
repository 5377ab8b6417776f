#include "src/eval/tasks/prose_task.h"

#include <memory>
#include <utility>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/random_draws.h"

namespace topkv {

EvalTask prose_task(const char* name, Scoring scoring, const TaskTokens& tokens,
                    const ProseSource& essays,
                    EvalSample (*make)(const SampleOrder&, const TaskTokens&, const ProseSource&)) {
  EvalTask task;
  task.name = task.seed_name = name;
  task.scoring = scoring;
  task.haystack = essays.name();
  task.make = [tokens, essays, make](const SampleOrder& order) {
    return make(order, tokens, essays);
  };
  return task;
}

void fill_with_prose(EvalSample* sample, const SampleOrder& order, const TaskTokens& tokens,
                     const ProseSource& essays, const std::vector<std::string>& units,
                     const FrameText& frame,
                     const std::function<std::string(std::string)>& sentence) {
  const std::shared_ptr<Prose> prose = essays.prose(mix_seed(order.seed, 1));
  const auto text = [&](std::int64_t words) {
    std::vector<std::string> filler = prose->words(words);
    if (sentence) {
      for (std::string& one : filler) one = sentence(std::move(one));
    }
    return frame(with_inserted(filler, units, even_places(std::ssize(filler), std::ssize(units))));
  };
  const std::int64_t words =
      most_units(tokens.room(order.length, sample->question, sample->predict), std::ssize(units), 1,
                 [&](std::int64_t count) { return tokens.count(text(count)); });
  sample->context = tokens.context(text(words));
}

}  // namespace topkv
