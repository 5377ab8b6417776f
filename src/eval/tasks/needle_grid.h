// The grid of `topkv needle` as a task of an evaluation: needles at several depths of one text,
// each with a question of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/eval/tasks/eval_task.h"
#include "src/eval/tasks/needle_task.h"

namespace topkv {

/// Tokens that RULER reserves for the answer to a question about a needle.
inline constexpr std::int64_t ruler_answer_tokens = 128;

struct NeedleGrid {
  NeedleTask task;
  std::vector<double> depths;  ///< in percent of the context, ascending
  std::string haystack;        ///< a name of haystack_names(), or a directory
  bool separate = false;       ///< one context per needle
  bool ruler_length = false;   ///< lengths count the question and RULER's answer
  std::int64_t predict = 0;    ///< tokens of an answer
  std::uint64_t seed = 0;

  /// Returns the tokens of a context of this length, for a question of question_tokens. Throws
  /// InvalidArgument when none are left.
  std::int64_t context_room(std::int64_t length, std::int64_t question_tokens) const;
  /// Tokens of the question about one of the needles.
  std::int64_t question_tokens(const TaskTokens& tokens) const;
};

/// The name of the task in results.
inline constexpr const char* needle_grid_name = "needle";

/// The task of a grid. Sample i has the needle at depths[i]. All samples of a length have one
/// context, unless the grid is separate. Texts depend on NeedleGrid::seed and the length, and not
/// on SampleOrder::seed.
EvalTask needle_grid_task(const TaskTokens& tokens, NeedleGrid grid);

}  // namespace topkv
