#include "src/eval/tasks/needle_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "src/eval/tasks/haystack.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Makes the samples of a grid. Keeps the last context, which the next sample may have too.
class GridSamples {
 public:
  GridSamples(TaskTokens tokens, NeedleGrid grid)
      : tokens_(std::move(tokens)), grid_(std::move(grid)) {}

  EvalSample make(const SampleOrder& order) {
    const auto number = static_cast<std::size_t>(order.number);
    if (length_ != order.length || (grid_.separate && number_ != order.number)) {
      const std::uint64_t seed = mix_seed(grid_.seed, static_cast<std::uint64_t>(order.length));
      context_ = grid_.separate
                     ? context(order.length, {grid_.depths[number]}, mix_seed(seed, number))
                     : context(order.length, grid_.depths, seed);
      length_ = order.length;
      number_ = order.number;
    }
    const PlacedNeedle& placed = context_.needles[grid_.separate ? 0 : number];
    return {.context = context_.tokens,
            .question = placed.needle.question,
            .references = {placed.needle.value},
            .predict = grid_.predict,
            .one_line = true,
            .key = placed.needle.key,
            .needle = placed.tokens};
  }

 private:
  NeedleContext context(std::int64_t length, const std::vector<double>& depths,
                        std::uint64_t seed) const {
    const std::vector<Needle> needles = grid_.task.needles(depths, seed);
    Random distractors(mix_seed(seed, 1));
    const auto haystack = make_haystack(grid_.haystack, mix_seed(seed, 2), [&] {
      return grid_.task.distractor(distractors, needles);
    });
    std::int64_t question = 0;  // tokens of the longest
    for (const Needle& needle : needles) {
      question = std::max(question, tokens_.count(needle.question));
    }
    return build_needle_context(grid_.context_room(length, question), tokens_.beginning,
                                grid_.task.intro(), needles, *haystack, tokens_.encode);
  }

  TaskTokens tokens_;
  NeedleGrid grid_;
  std::int64_t length_ = -1;
  std::int64_t number_ = -1;
  NeedleContext context_;
};

}  // namespace

std::int64_t NeedleGrid::context_room(std::int64_t length, std::int64_t question_tokens) const {
  if (!ruler_length) return length;
  const std::int64_t room = length - question_tokens - ruler_answer_tokens;
  if (room > 0) return room;
  throw InvalidArgument(
      fmt::format("-c: {} tokens leave no room for the context, with --ruler-length, a question of "
                  "{} tokens and {} for the answer; use a longer -c",
                  length, question_tokens, ruler_answer_tokens));
}

std::int64_t NeedleGrid::question_tokens(const TaskTokens& tokens) const {
  return tokens.count(task.needles({50}, seed).front().question);
}

EvalTask needle_grid_task(const TaskTokens& tokens, NeedleGrid grid) {
  EvalTask task;
  task.name = task.seed_name = needle_grid_name;
  task.haystack = grid.haystack;
  task.most = std::ssize(grid.depths);
  task.depths = grid.depths;
  task.beyond =
      grid.predict + (grid.ruler_length ? -ruler_answer_tokens : grid.question_tokens(tokens));
  task.make = [samples = std::make_shared<GridSamples>(tokens, std::move(grid))](
                  const SampleOrder& order) { return samples->make(order); };
  return task;
}

}  // namespace topkv
