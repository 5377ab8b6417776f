#include "src/cli/flags/answer_flags.h"

#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {

void check_flags(const AnswerFlags& flags) {
  check_flags(flags.drafts);
  if (flags.logprobs && !flags.json)
    throw UsageError("--logprobs: is printed with events of tokens only; add --json");
}

GenerateOptions generate_options(const AnswerFlags& answers, const SamplingOptions& own) {
  GenerateOptions options{.max_tokens = answers.predict,
                          .sampling = sampling_options(answers.sampling, own)};
  for (const std::string& stop : answers.stop) options.stop.push_back(unescaped(stop));
  SamplingOptions& how = options.sampling;
  how.min_p = answers.min_p.value_or(own.min_p);
  how.repetition_penalty = answers.repetition_penalty.value_or(own.repetition_penalty);
  how.frequency_penalty = answers.frequency_penalty;
  how.presence_penalty = answers.presence_penalty;
  options.logprobs = answers.logprobs.value_or(-1);
  options.draft = parse_draft(answers.drafts.mode);
  return options;
}

bool follows_model(const AnswerFlags& flags) {
  const SamplingFlags& sampling = flags.sampling;
  return !sampling.temperature && !sampling.top_k && !sampling.top_p && !flags.min_p &&
         !flags.repetition_penalty;
}

}  // namespace topkv::cli
