#include "src/cli/commands/needle_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/profile.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"
#include "src/eval/run/answer.h"
#include "src/eval/tasks/needle_context.h"
#include "src/serve/run/prompt_boundary.h"

namespace topkv::cli {
namespace {

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::int64_t missing_cells(const NeedlePlan& plan, const RunDirectory& directory) {
  std::int64_t missing = 0;
  for (const std::int64_t length : plan.lengths) {
    for (const double depth : plan.depths) {
      for (const std::string& index : plan.indices) {
        missing += directory.has(length, depth, index) ? 0 : 1;
      }
    }
  }
  return missing;
}

struct NeedleRun::Prefilled {
  std::int64_t length = 0;
  std::shared_ptr<const Context> context;
  std::vector<PlacedNeedle> needles;
  double seconds = 0;
  ForwardTimes times = {};
};

NeedleRun::NeedleRun(const Model& model, const NeedleFlags& flags, const NeedlePlan& plan,
                     RunDirectory& directory, ProgressBar& progress)
    : model_(model),
      flags_(flags),
      plan_(plan),
      directory_(directory),
      progress_(progress),
      prefill_options_(prefill_options(flags.prefill, flags.retrieval)),
      beginning_(serve::beginning_tokens(model.tokenizer())) {
  for (const std::string& index : plan.indices) {
    if (model.device().is_cuda() && IndexSpec(index).grows()) {
      prefill_options_.indices.push_back(index);
    }
  }
  check_reach();
}

/// Now rather than when the model gets there.
void NeedleRun::check_reach() const {
  const Needle any = plan_.task.needles({50}, plan_.seed).front();
  const auto question = static_cast<std::int64_t>(question_of(any).size());
  model_.check_reach(plan_.context_room(plan_.lengths.back(), question) + question + plan_.predict);
}

std::vector<Token> NeedleRun::question_of(const Needle& needle) const {
  return model_.tokenizer().encode(needle.question);
}

bool NeedleRun::missing(std::int64_t length, double depth) const {
  return std::any_of(plan_.indices.begin(), plan_.indices.end(), [&](const std::string& index) {
    return !directory_.has(length, depth, index);
  });
}

void NeedleRun::run() {
  const auto total =
      std::ssize(plan_.lengths) * std::ssize(plan_.depths) * std::ssize(plan_.indices);
  const std::int64_t there = total - missing_cells(plan_, directory_);
  if (there > 0) {
    progress_.note(fmt::format("{}: {} of {} cells are there already",
                               printable(directory_.file("").parent_path().string()), there,
                               total));
  }
  for (const std::int64_t length : plan_.lengths) {
    const std::uint64_t seed = mix_seed(plan_.seed, static_cast<std::uint64_t>(length));
    if (!plan_.separate) {
      run_context(length, plan_.depths, seed);
      continue;
    }
    for (std::size_t i = 0; i < plan_.depths.size(); ++i) {
      run_context(length, {plan_.depths[i]}, mix_seed(seed, i));
    }
  }
}

void NeedleRun::run_context(std::int64_t length, const std::vector<double>& depths,
                            std::uint64_t seed) {
  if (std::none_of(depths.begin(), depths.end(),
                   [&](double depth) { return missing(length, depth); })) {
    return;
  }
  const Prefilled prefilled = prefill(length, depths, seed);
  for (const std::string& index : plan_.indices) ask_all(prefilled, index);
}

NeedleRun::Prefilled NeedleRun::prefill(std::int64_t length, const std::vector<double>& depths,
                                        std::uint64_t seed) {
  stop_if_interrupted();
  const std::vector<Needle> needles = plan_.task.needles(depths, seed);
  Random distractors(mix_seed(seed, 1));
  const auto haystack = make_haystack(plan_.haystack, mix_seed(seed, 2),
                                      [&] { return plan_.task.distractor(distractors, needles); });
  std::int64_t question = 0;  // tokens of the longest
  for (const Needle& needle : needles) {
    question = std::max(question, static_cast<std::int64_t>(question_of(needle).size()));
  }
  const NeedleContext text = build_needle_context(
      plan_.context_room(length, question), beginning_, plan_.task.intro(), needles, *haystack,
      [&](std::string_view piece) { return model_.tokenizer().encode(piece); });

  check_indices(flags_.retrieval, model_.config(), static_cast<std::int64_t>(text.tokens.size()));

  Prefilled prefilled;
  prefilled.length = length;
  prefilled.needles = text.needles;
  std::string title = fmt::format("{} prefill", format_count(length));
  if (depths.size() == 1) title += fmt::format(" (depth {} %)", format_percent(depths.front()));
  const Stopwatch watch;
  prefilled.context =
      model_.prefill(text.tokens, prefill_options_, progress_.callback(title), &prefilled.times);
  prefilled.seconds = watch.seconds() - prefilled.times.indexing;
  return prefilled;
}

void NeedleRun::ask_all(const Prefilled& prefilled, const std::string& index) {
  const auto wanted = [&](const PlacedNeedle& placed) {
    return !directory_.has(prefilled.length, placed.needle.depth, index);
  };
  const auto missing_cells =
      std::count_if(prefilled.needles.begin(), prefilled.needles.end(), wanted);
  if (missing_cells == 0) return;

  stop_if_interrupted();
  std::shared_ptr<const Context> context = prefilled.context;
  const std::string prefix = format_count(prefilled.length);
  // One that grew beside the prefill cost what was waited for it, shared by all that did.
  const bool built = !context->has_index(index);
  double build_seconds = built || index == "exact" ? 0 : prefilled.times.indexing;
  const std::int64_t before = context->memory().index_bytes;
  const Stopwatch build;
  if (built) {
    context = context->with_index(index, progress_.callback(fmt::format("{} {}", prefix, index)),
                                  model_.device());
  }
  const std::string tail = tail_beside(flags_.retrieval.tail, index);
  context = with_tail(context, tail, progress_.callback(prefix + " tail"), model_.device());
  if (context != prefilled.context) build_seconds += build.seconds();
  const std::int64_t index_bytes = context->memory().index_bytes - before +
                                   (built || index == "exact" ? 0 : context->index_bytes(index));

  Progress progress{"ask", "needles", 0, missing_cells};
  const std::string title = fmt::format("{} ask ({})", prefix, index);
  progress_.report(title, progress);
  for (const PlacedNeedle& placed : prefilled.needles) {
    if (!wanted(placed)) continue;
    Cell cell = ask(context, index, placed);
    cell.length = prefilled.length;
    cell.context_tokens = context->tokens();
    cell.prefill_seconds = prefilled.seconds;
    cell.prefill_tokens_per_second = per_second(context->tokens(), prefilled.seconds);
    cell.prefill_times = prefilled.times;
    cell.index_build_seconds = build_seconds;
    cell.index_bytes = index_bytes;
    cell.rows_bytes = context->memory().rows_bytes;
    directory_.append(cell);
    progress.done += 1;
    progress_.report(title, progress);
  }
}

// The question once more, beside exact search: slower, and so kept out of every time above.
std::optional<double> NeedleRun::measure_recall(const std::shared_ptr<const Context>& context,
                                                const std::string& index,
                                                const std::vector<Token>& question) const {
  RetrievalOptions options =
      retrieval_options(flags_.retrieval, model_.config().attention.layers, index,
                        static_cast<std::int64_t>(question.size()) + 1);
  options.measure_recall = true;
  Session session(context, options, model_.device());
  model_.generate(session, question, {.max_tokens = 1});
  const SessionStats& stats = session.stats();
  if (stats.exact_rows == 0) return {};  // sinks and window were everything
  return static_cast<double>(stats.exact_rows_found) / static_cast<double>(stats.exact_rows);
}

Cell NeedleRun::ask(const std::shared_ptr<const Context>& context, const std::string& index,
                    const PlacedNeedle& placed) {
  const Stopwatch watch;
  Cell cell;
  cell.index = index;
  cell.depth = placed.needle.depth;
  cell.key = placed.needle.key;
  cell.value = placed.needle.value;
  cell.needle_begin = placed.tokens.begin;
  cell.needle_end = placed.tokens.end;

  const std::vector<Token> question = question_of(placed.needle);
  const auto question_tokens = static_cast<std::int64_t>(question.size());
  const AttentionShape& shape = model_.config().attention;
  // Recall is measured in a second session, beside this one.
  const std::int64_t own = question_tokens + plan_.predict + 1;
  check_rows(shape, context->tokens() + own + (flags_.recall ? question_tokens + 1 : 0),
             prefill_options_);
  Session session(
      context,
      retrieval_options(flags_.retrieval, shape.layers, index, question_tokens + plan_.predict + 1),
      model_.device());
  std::vector<StepTimes> before_decoding;
  const Answer answer = topkv::ask(model_, session, question,
                                   {.generate = {plan_.predict, sampling_options(flags_.sampling)},
                                    .one_line = true,
                                    .on_token = [&](Token) {
                                      if (before_decoding.empty())
                                        before_decoding = session.step_times();
                                      return !interrupted();
                                    }});
  const GenerateResult& result = answer.result;
  stop_if_interrupted();
  add_difference(profile_.layers, session.step_times(), before_decoding);
  profile_.steps += result.steps;
  profile_.seconds += result.decode_seconds;

  cell.answer = answer.text;
  cell.found = answer_has(cell.answer, cell.value);
  cell.question_tokens = question_tokens;
  cell.answer_tokens = static_cast<std::int64_t>(result.tokens.size());
  cell.rows_per_head = answer.rows_per_head;
  cell.question_seconds = result.prompt_seconds;
  cell.decode_seconds = result.decode_seconds;
  cell.decode_steps = result.steps;
  if (result.steps > 0 && result.decode_seconds > 0) {
    cell.decode_tokens_per_second = per_second(result.steps, result.decode_seconds);
  }
  cell.answer_times = result.times;
  cell.seconds = watch.seconds();
  cell.peak_memory_bytes = peak_memory_bytes();
  cell.gpu_peak_bytes = model_.device().memory().peak;
  cell.device = model_.device().name();
  if (flags_.recall) cell.recall = measure_recall(context, index, question);
  cell.kv_tail = session.options().tail;
  cell.kv_topk = flags_.retrieval.k;
  cell.kv_window = session.options().window;
  cell.kv_sinks = session.options().sinks;
  cell.seed = plan_.seed;
  cell.version = version();
  return cell;
}

}  // namespace topkv::cli
