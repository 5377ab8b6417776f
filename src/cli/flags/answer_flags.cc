#include "src/cli/flags/answer_flags.h"

#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {

void add_flags(CLI::App& command, AnswerFlags& flags) {
  command.add_option("--min-p", flags.min_p, "a number from 0 to 1");
  command.add_option("--repetition-penalty", flags.repetition_penalty,
                     "a number above 0 and up to 100");
  command.add_option("--frequency-penalty", flags.frequency_penalty, "a number from -2 to 2");
  command.add_option("--presence-penalty", flags.presence_penalty, "a number from -2 to 2");
  command.add_option("--logprobs", flags.logprobs, "a number from 0 to 20");
  command.add_option("--stop", flags.stop, "a text")->expected(1)->take_all();
  command.add_flag("--quiet", flags.quiet);
  command.add_flag("--json", flags.json);
}

void check_flags(const AnswerFlags& flags) {
  generate_options({}, flags, {}, 1);
  for (const std::string& stop : flags.stop) {
    check_utf8("--stop", stop);
    if (stop.empty()) throw UsageError("--stop: expected a text, found ''");
  }
  if (!flags.logprobs.empty() && !flags.json)
    throw UsageError("--logprobs: is printed with events of tokens only; add --json");
}

GenerateOptions generate_options(const SamplingFlags& sampling, const AnswerFlags& answers,
                                 const SamplingOptions& own, std::int64_t max_tokens) {
  GenerateOptions options{.max_tokens = max_tokens, .sampling = sampling_options(sampling, own)};
  for (const std::string& stop : answers.stop) options.stop.push_back(unescaped(stop));
  SamplingOptions& how = options.sampling;
  if (!answers.min_p.empty()) how.min_p = parse_real("--min-p", answers.min_p, 0, 1);
  if (!answers.repetition_penalty.empty()) {
    how.repetition_penalty =
        parse_real("--repetition-penalty", answers.repetition_penalty, 0, 100, true);
  }
  if (!answers.frequency_penalty.empty())
    how.frequency_penalty = parse_real("--frequency-penalty", answers.frequency_penalty, -2, 2);
  if (!answers.presence_penalty.empty())
    how.presence_penalty = parse_real("--presence-penalty", answers.presence_penalty, -2, 2);
  if (!answers.logprobs.empty())
    options.logprobs = parse_count("--logprobs", answers.logprobs, 0, 20);
  return options;
}

bool follows_model(const SamplingFlags& sampling, const AnswerFlags& answers) {
  return sampling.temperature.empty() && sampling.top_k.empty() && sampling.top_p.empty() &&
         answers.min_p.empty() && answers.repetition_penalty.empty();
}

}  // namespace topkv::cli
