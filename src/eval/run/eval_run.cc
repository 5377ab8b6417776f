#include "src/eval/run/eval_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/memory/peak_memory.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"
#include "src/eval/run/bytes_read.h"
#include "src/eval/tasks/scoring.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

constexpr std::int64_t long_context = 100000;  ///< tokens, from which a prefill is noted

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
  place.sample = task.depths.empty() ? number : 0;
  if (!task.depths.empty()) place.depth = task.depths[static_cast<std::size_t>(number)];
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

std::int64_t EvalRun::missing_of(const EvalTask& task, std::int64_t length,
                                 std::int64_t number) const {
  std::int64_t missing = 0;
  for (const Method& method : plan_.methods) {
    missing += std::ssize(missing_of(task, length, number, method));
  }
  return missing;
}

std::int64_t EvalRun::missing() const {
  std::int64_t missing = 0;
  for (const EvalTask& task : plan_.tasks) {
    for (const std::int64_t length : plan_.lengths) {
      for (std::int64_t number = 0; number < samples_of(task); ++number) {
        missing += missing_of(task, length, number);
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
  std::int64_t beyond = 0;
  for (const EvalTask& task : plan_.tasks) {
    // Generated samples are alike; questions about files are not.
    const std::int64_t count = task.most < 0 || !task.depths.empty() ? 1 : samples_of(task);
    for (std::int64_t number = 0; number < count; ++number) {
      const EvalSample sample = make(task, plan_.lengths.front(), number);
      for (const Method& method : plan_.methods) check_keys(method, std::ssize(sample.context));
    }
    beyond = std::max(beyond, task.beyond);
  }
  model_.check_reach(plan_.lengths.back() + beyond);
}

void EvalRun::check_keys(const Method& method, std::int64_t keys) const {
  for (const std::string& index : method.indices()) {
    try {
      IndexSpec(index).check(model_.config().attention.head_dim, keys);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", plan_.methods_flag, error.what()));
    }
  }
}

void EvalRun::run() {
  answers_ = {"eval", "answers", 0, missing()};
  for (const std::int64_t length : plan_.lengths) {
    for (const EvalTask& task : plan_.tasks) {
      std::vector<Sample> samples;  // with one context, which the first alone keeps
      for (std::int64_t number = 0; number < samples_of(task); ++number) {
        if (missing_of(task, length, number) == 0) continue;
        Sample sample{number, make(task, length, number), {}};
        sample.question = model_.tokenizer().encode(sample.made.question);
        if (!samples.empty() && samples.front().made.context == sample.made.context) {
          sample.made.context = {};
        } else {
          run_samples(task, length, samples);
          samples.clear();
        }
        samples.push_back(std::move(sample));
      }
      run_samples(task, length, samples);
    }
  }
}

void EvalRun::run_samples(const EvalTask& task, std::int64_t length,
                          const std::vector<Sample>& samples) {
  if (samples.empty()) return;
  prefill(task, length, samples);
  for (const Method& method : plan_.methods) {
    std::vector<std::vector<EvalResult>> missing;  // of each sample
    Progress asked{"ask", "answers", 0, 0};
    for (const Sample& sample : samples) {
      missing.push_back(missing_of(task, length, sample.number, method));
      asked.total += std::ssize(missing.back());
    }
    if (asked.total == 0) continue;
    // Its indices go with this context, before the next method's are made.
    const Indexed indexed = with_indices(method, length);
    const ProgressFn asking =
        hooks_.stage(fmt::format("{} ask ({})", format_count(length), method.name), answers_);
    asking(asked);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (const EvalResult& place : missing[i]) {
        answer(task, samples[i], method, indexed, place, [&] { asking(asked); });
        answers_.done += 1;
        asked.done += 1;
        asking(asked);
      }
    }
  }
}

void EvalRun::prefill(const EvalTask& task, std::int64_t length,
                      const std::vector<Sample>& samples) {
  const std::vector<Token>& tokens = samples.front().made.context;
  if (prefilled_.context && prefilled_.tokens == tokens) return;
  prefilled_ = {};  // two would not fit where one just does
  std::string stage = fmt::format("{} prefill", format_count(length));
  if (!task.depths.empty() && samples.size() == 1) {
    stage += fmt::format(" (depth {} %)",
                         format_percent(task.depths[static_cast<std::size_t>(samples[0].number)]));
  }
  const ProgressFn prefilling = hooks_.stage(stage, answers_);
  PrefillOptions options = plan_.prefill;
  options.attention = model_.prefill_attention(options, std::ssize(tokens));
  prefilled_.attention = options.attention;
  const Stopwatch watch;
  prefilled_.context = model_.prefill(tokens, options, prefilling, &prefilled_.times);
  prefilled_.seconds = watch.seconds() - prefilled_.times.indexing;
  prefilled_.tokens = tokens;
  if (std::ssize(tokens) < long_context || !hooks_.note) return;
  hooks_.note(fmt::format("{}: prefilled {} tokens in {}", task.name,
                          format_grouped(std::ssize(tokens)), format_seconds(prefilled_.seconds)));
}

EvalRun::Indexed EvalRun::with_indices(const Method& method, std::int64_t length) const {
  const std::string& index = method.options.index;
  Indexed indexed;
  // An index that grew beside the prefill cost the time that the prefill waited for it.
  const bool grew = index != "exact" && prefilled_.context->has_index(index);
  const std::int64_t before = prefilled_.context->memory().index_bytes;
  const Stopwatch watch;
  const std::string prefix = format_count(length);
  indexed.context = prefilled_.context->ready_for(
      method.options,
      [on_index = hooks_.stage(fmt::format("{} {}", prefix, index), answers_),
       on_tail = hooks_.stage(prefix + " tail", answers_)](const Progress& progress) {
        (progress.stage == "tail" ? on_tail : on_index)(progress);
      },
      model_.device());
  if (indexed.context != prefilled_.context) {
    indexed.build_seconds = watch.seconds();
  }
  indexed.index_bytes = indexed.context->memory().index_bytes - before;
  if (grew) {
    indexed.build_seconds += prefilled_.times.indexing;
    indexed.index_bytes += indexed.context->index_memory(index);
  }
  return indexed;
}

// The question once more, beside exact search: slower, and so kept out of every time of the answer.
std::optional<double> EvalRun::measure_recall(const std::shared_ptr<const Context>& context,
                                              RetrievalOptions options,
                                              const std::vector<Token>& question) const {
  options.capacity = std::ssize(question) + 1;
  options.measure_recall = true;
  Session session(context, options, model_.device());
  model_.generate(session, question, {.max_tokens = 1});
  const SessionStats& stats = session.stats();
  if (stats.exact_rows == 0) return {};  // sinks and window were everything
  return static_cast<double>(stats.exact_rows_found) / static_cast<double>(stats.exact_rows);
}

void EvalRun::answer(const EvalTask& task, const Sample& sample, const Method& method,
                     const Indexed& indexed, EvalResult result,
                     const std::function<void()>& asking) {
  const Context& context = *indexed.context;
  const std::int64_t question = std::ssize(sample.question);
  const RetrievalOptions options =
      method.with(result.budget.value_or(1), question + sample.made.predict + 1);
  const Stopwatch watch;
  Session session(indexed.context, options, model_.device());
  const Answer answer = ask(model_, session, sample.question,
                            {.generate = {sample.made.predict, plan_.sampling},
                             .one_line = sample.made.one_line,
                             .steps = task.steps,
                             .on_token = [&](Token) {
                               asking();
                               return true;
                             }});
  result.seconds = watch.seconds();
  if (hooks_.answered) hooks_.answered(session, answer);

  result.question = sample.made.question;
  result.references = sample.made.references;
  result.answer = answer.text;
  if (!result.references.empty()) {
    result.score = score_of(task.scoring, answer.text, result.references);
    if (task.f1) result.f1 = squad_f1(answer.text, result.references);
  }
  result.haystack = task.haystack;
  result.key = sample.made.key;
  result.needle = sample.made.needle;
  result.context_tokens = context.tokens();
  result.question_tokens = question;
  result.answer_tokens = std::ssize(answer.result.tokens);
  result.rows_per_head = answer.rows_per_head;
  const AttentionShape& shape = context.shape();
  result.bytes_read =
      bytes_read(context, session.options(),
                 answer.rows_per_head * static_cast<double>(shape.layers * shape.q_heads));

  result.prefill_seconds = prefilled_.seconds;
  result.prefill_times = prefilled_.times;
  result.index_build_seconds = indexed.build_seconds;
  result.index_bytes = indexed.index_bytes;
  result.rows_bytes = context.memory().rows_bytes;
  result.question_seconds = answer.result.prompt_seconds;
  result.decode_seconds = answer.result.decode_seconds;
  result.decode_steps = answer.result.steps;
  result.answer_times = answer.result.times;
  result.peak_memory_bytes = peak_memory_bytes();
  result.gpu_peak_bytes = model_.device().memory().peak;
  if (plan_.recall) result.recall = measure_recall(indexed.context, options, sample.question);

  result.index = session.options().index;
  result.tail = session.options().tail;
  result.topk = method.topk;
  result.window = session.options().window;
  result.sinks = session.options().sinks;
  result.dense_layers = session.options().dense_layers;
  result.select = session.options().select_by == SelectBy::group ? "group" : "query_head";
  result.prefill = name_of(prefilled_.attention.mode);
  result.seed = plan_.seed;
  result.device = model_.device().name();
  result.version = plan_.version;
  directory_.append(result);
}

}  // namespace topkv
