// A task of `topkv eval`: what makes its samples, and how answers to them are scored. Tasks are
// values that own what they need, but for what TaskTokens refers to; one thread at a time makes
// samples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/eval/tasks/needle_context.h"
#include "src/eval/tasks/scoring.h"
#include "topkv/types.h"

namespace topkv {

/// One text and a question about it. Their tokens and those of the answer together are at most the
/// length that was asked for.
struct EvalSample {
  std::vector<Token> context;
  std::string question;                 ///< the session's prompt, up to where the answer begins
  std::vector<std::string> references;  ///< none: answers are kept and not scored
  std::int64_t predict = 0;             ///< tokens to generate
  bool one_line = false;                ///< the answer ends with its line
  std::string key = {};                 ///< of a needle: the subject of its fact
  PositionRange needle = {};            ///< of a needle: its tokens in the context
};

/// What a sample is made for.
struct SampleOrder {
  std::int64_t length = 0;  ///< tokens of context, question and answer together, at most
  std::uint64_t seed = 0;   ///< of this sample alone
  std::int64_t number = 0;  ///< from 0
};

/// The tokenizer, as samples need it.
struct TaskTokens {
  EncodeFn encode;
  std::vector<Token> beginning;  ///< what every context begins with: a BOS, if any

  std::int64_t count(std::string_view text) const {
    return static_cast<std::int64_t>(encode(text).size());
  }
  /// The beginning and the text.
  std::vector<Token> context(std::string_view text) const;
  /// Tokens left for the text of the context. Throws InvalidArgument when there are none.
  std::int64_t room(std::int64_t length, std::string_view question, std::int64_t predict) const;
};

struct EvalTask {
  std::string name;
  std::string seed_name;  ///< tasks that share it have the same texts
  Scoring scoring = Scoring::all;
  std::string haystack;    ///< what the answer is hidden in, for the record
  bool steps = false;      ///< the question is fed token by token, as decoding would
  bool f1 = false;         ///< answers are given SQuAD's F1 besides
  std::int64_t most = -1;  ///< samples that there are; -1: as many as are asked for
  /// Percent of the context: sample i asks for a needle at depths[i]. Empty: samples have numbers.
  std::vector<double> depths = {};
  /// Tokens that context, question and answer may take together beyond the length of a sample.
  std::int64_t beyond = 0;
  /// Throws InvalidArgument when the length is too short.
  std::function<EvalSample(const SampleOrder&)> make;
};

/// The seed of a sample: another one for every task, length and number.
std::uint64_t sample_seed(std::uint64_t seed, const EvalTask& task, std::int64_t length,
                          std::int64_t number);

}  // namespace topkv
