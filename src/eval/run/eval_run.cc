#include "src/eval/run/eval_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"
#include "src/eval/run/answer.h"
#include "src/eval/run/bytes_read.h"
#include "src/eval/tasks/scoring.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

constexpr std::int64_t long_context = 100000;  ///< tokens from which reading them is told of

}  // namespace

EvalRun::EvalRun(const Model& model, const EvalPlan& plan, EvalDirectory& directory,
                 EvalHooks hooks)
    : model_(model), plan_(plan), directory_(directory), hooks_(std::move(hooks)) {}

std::int64_t EvalRun::samples_of(const EvalTask& task) const {
  if (task.most < 0) return plan_.samples;
  return plan_.all_questions ? task.most : std::min(plan_.samples, task.most);
}

/// One for each budget, as far as it is; a method that attends all rows has one in all.
std::vector<EvalResult> EvalRun::missing_of(const EvalTask& task, std::int64_t length,
                                            std::int64_t number, const Method& method) const {
  std::vector<EvalResult> missing;
  EvalResult place;
  place.task = task.name;
  place.length = length;
  place.sample = number;
  place.method = method.name;
  if (!method.budgets) {
    if (!directory_.has(place)) missing.push_back(place);
    return missing;
  }
  for (const std::int64_t budget : plan_.budgets) {
    place.budget = budget;
    if (!directory_.has(place)) missing.push_back(place);
  }
  return missing;
}

std::int64_t EvalRun::missing() const {
  std::int64_t missing = 0;
  for (const EvalTask& task : plan_.tasks) {
    for (const std::int64_t length : plan_.lengths) {
      for (std::int64_t number = 0; number < samples_of(task); ++number) {
        for (const Method& method : plan_.methods) {
          missing += std::ssize(missing_of(task, length, number, method));
        }
      }
    }
  }
  return missing;
}

EvalSample EvalRun::make(const EvalTask& task, std::int64_t length, std::int64_t number) const {
  try {
    return task.make({length, sample_seed(plan_.seed, task, length, number), number});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("task {}, length {}: {}", task.name, length, error.what()));
  }
}

void EvalRun::check() const {
  for (const EvalTask& task : plan_.tasks) {
    // Generated samples are alike; questions about files are not.
    const std::int64_t count = task.most < 0 ? 1 : samples_of(task);
    for (std::int64_t number = 0; number < count; ++number) {
      const EvalSample sample = make(task, plan_.lengths.front(), number);
      for (const Method& method : plan_.methods) {
        for (const std::string& index : method.indices()) {
          IndexSpec(index).check(model_.config().attention.head_dim, std::ssize(sample.context));
        }
      }
    }
  }
  model_.check_reach(plan_.lengths.back());
}

void EvalRun::tell(std::int64_t more) {
  progress_.done += more;
  hooks_.progress(progress_);
}

void EvalRun::run() {
  progress_ = {"eval", "answers", 0, missing()};
  if (progress_.total == 0) return;
  tell(0);
  for (const std::int64_t length : plan_.lengths) {
    for (const EvalTask& task : plan_.tasks) {
      for (std::int64_t number = 0; number < samples_of(task); ++number) {
        run_sample(task, length, number);
      }
    }
  }
}

void EvalRun::run_sample(const EvalTask& task, std::int64_t length, std::int64_t number) {
  std::optional<Sample> sample;
  for (const Method& method : plan_.methods) {
    const std::vector<EvalResult> missing = missing_of(task, length, number, method);
    if (missing.empty()) continue;
    if (!sample) {
      sample.emplace();
      sample->made = make(task, length, number);
      sample->question = model_.tokenizer().encode(sample->made.question);
      prefill(task, sample->made);
    }
    // Its indices go with this context, before the next method's are made.
    std::shared_ptr<const Context> context = context_;
    for (const std::string& index : method.indices()) {
      if (context->has_index(index)) continue;
      context = context->with_index(
          index, [&](const Progress&) { tell(0); }, model_.device());
    }
    for (const EvalResult& place : missing) {
      answer(task, *sample, method, context, place);
      tell(1);
    }
  }
}

void EvalRun::prefill(const EvalTask& task, const EvalSample& sample) {
  if (context_ && tokens_ == sample.context) return;
  context_.reset();  // two would not fit where one just does
  const Stopwatch watch;
  context_ = model_.prefill(sample.context, plan_.prefill, [&](const Progress&) { tell(0); });
  prefill_seconds_ = watch.seconds();
  tokens_ = sample.context;
  if (context_->tokens() < long_context || !hooks_.note) return;
  hooks_.note(fmt::format("{}: {} tokens read in {}", task.name, format_grouped(context_->tokens()),
                          format_seconds(prefill_seconds_)));
}

void EvalRun::answer(const EvalTask& task, const Sample& sample, const Method& method,
                     const std::shared_ptr<const Context>& context, EvalResult result) {
  const std::int64_t question = std::ssize(sample.question);
  const Stopwatch watch;
  Session session(context,
                  method.with(result.budget.value_or(1), question + sample.made.predict + 1),
                  model_.device());
  const Answer answer = ask(model_, session, sample.question,
                            {.generate = {.max_tokens = sample.made.predict},
                             .one_line = sample.made.one_line,
                             .steps = task.steps,
                             .on_token = [&](Token) {
                               tell(0);
                               return true;
                             }});
  result.question = sample.made.question;
  result.references = sample.made.references;
  result.answer = answer.text;
  if (!result.references.empty()) {
    result.score = score_of(task.scoring, answer.text, result.references);
    if (task.f1) result.f1 = squad_f1(answer.text, result.references);
  }
  result.haystack = task.haystack;
  result.context_tokens = context->tokens();
  result.question_tokens = question;
  result.answer_tokens = std::ssize(answer.result.tokens);
  result.rows_per_head = answer.rows_per_head;
  const AttentionShape& shape = context->shape();
  result.bytes_read =
      bytes_read(*context, session.options(),
                 answer.rows_per_head * static_cast<double>(shape.layers * shape.q_heads));
  result.prefill_seconds = prefill_seconds_;
  result.question_seconds = answer.result.prompt_seconds;
  result.decode_seconds = answer.result.decode_seconds;
  result.decode_steps = answer.result.steps;
  result.seconds = watch.seconds();
  const RetrievalOptions& options = session.options();
  result.index = options.index;
  result.tail = options.tail;
  result.window = options.window;
  result.sinks = options.sinks;
  result.dense_layers = options.dense_layers;
  result.select = options.select_by == SelectBy::group ? "group" : "query_head";
  result.seed = plan_.seed;
  result.device = model_.device().name();
  result.version = plan_.version;
  directory_.append(result);
}

}  // namespace topkv
