// `topkv needle`: flags to options, the run, and what is shown of it.

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/needle_options.h"
#include "src/cli/flags/run_config.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/profile.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/terminal_heatmap.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/eval/report/heatmap.h"
#include "src/eval/report/report_page.h"
#include "src/eval/run/eval_run.h"
#include "src/eval/run/needle_cells.h"

namespace topkv::cli {
namespace {

/// prefill: the flags with the mode of all contexts.
std::string settings_line(const NeedleFlags& flags, const PrefillFlags& prefill,
                          const NeedleOptions& options, const std::vector<std::string>& indices) {
  const RetrievalFlags& kv = flags.retrieval;
  std::string text =
      fmt::format("top {} of {} by {}, window {}, sinks {}", kv.k,
                  indices.size() == 1 ? indices.front() : std::string("several indices"),
                  kv.select == "group" ? "group" : "query head", kv.window, kv.sinks);
  if (!kv.tail.empty()) text += ", tail " + tail_text(kv.tail);
  if (kv.mass) text += fmt::format(", mass {}", *kv.mass);
  if (kv.error) text += fmt::format(", error {}", *kv.error);
  if (kv.guarantee) text += ", guarantee " + *kv.guarantee;
  text = settings_text(kv.dense_layers ? text : "dense in all layers", kv, prefill);
  if (const double heat = sampling_options(flags.sampling).temperature; heat > 0) {
    text += fmt::format("; temperature {:g}", heat);
  }
  if (options.grid.ruler_length) text += "; lengths as RULER counts them";
  return fmt::format("{}; haystack {}", text, printable(options.grid.haystack));
}

void print_report(const std::vector<EvalResult>& cells, const Grid& grid,
                  const std::string& settings, const EvalDirectory& directory) {
  ForwardTimes prefill;
  ForwardTimes answers;
  std::int64_t peak = 0;
  std::int64_t gpu_peak = 0;
  for (const EvalResult& cell : cells) {
    prefill += cell.prefill_times;
    answers += cell.answer_times;
    peak = std::max(peak, cell.peak_memory_bytes);
    gpu_peak = std::max(gpu_peak, cell.gpu_peak_bytes);
  }
  const std::size_t width = line_width(stdout);
  const auto line = [&](const char* label, const std::string& text) {
    fmt::print("{}", labelled(label, text, width));
  };
  fmt::print("{}\n", answers_table(cells, width));
  fmt::print("{}\n", terminal_heatmap(grid, shows_colour(stdout), width));
  fmt::print("{}\n", summary_table(summarise(cells), width));
  line("settings", settings);
  line("prefill time", time_shares(prefill));
  line("answer time", time_shares(answers));
  line("device", cells.empty() ? "-" : cells.back().device);
  line("peak memory", byte_text(peak));
  if (gpu_peak > 0) line("GPU memory", fmt::format("{} at most", byte_text(gpu_peak)));
  line("files", fmt::format("{}/: cells.jsonl summary.csv heatmap.svg report.html run.json",
                            printable(directory.file("").parent_path().string())));
}

std::string score_text(const std::vector<EvalResult>& cells) {
  std::int64_t found = 0;
  for (const EvalResult& cell : cells) found += cell.found() ? 1 : 0;
  const double percent =
      cells.empty() ? 0 : 100.0 * static_cast<double>(found) / static_cast<double>(cells.size());
  return fmt::format("{} of {} found ({:.0f} %)", found, cells.size(), percent);
}

void print_score(const std::vector<EvalResult>& cells, std::int64_t not_run) {
  std::string text = score_text(cells);
  if (not_run > 0) text += fmt::format(", {} cells not run", not_run);
  fmt::print("{}", labelled("score", text, line_width(stdout)));
}

// Shows all that the directory holds, of this run and earlier ones.
void finish(const NeedleFlags& flags, const NeedleOptions& options, const EvalDirectory& directory,
            std::int64_t missing) {
  const auto indices = directory.configuration().at("kv_index").get<std::vector<std::string>>();
  const auto lengths = directory.configuration().at("lengths").get<std::vector<std::int64_t>>();
  const std::vector<EvalResult> cells = in_grid_order(directory.results(), indices);
  const Grid grid = make_grid(cells, lengths, options.grid.depths, indices);
  const std::string settings =
      settings_line(flags, as_read(flags.prefill, cells), options, indices);
  write_file(directory.file("summary.csv"), summary_csv(summarise(cells)));
  const std::string title = fmt::format("Needles found by {}", model_name(flags.model));
  const std::string picture = svg_heatmap(grid, title, settings);
  write_file(directory.file("heatmap.svg"), picture);
  write_file(
      directory.file("report.html"),
      html_page(
          {.title = title,
           .subtitle = fmt::format("topkv needle {}: {}", version(), score_text(cells)),
           .picture = picture,
           .parts = {{"Summary", summary_of(summarise(cells))}, {"Answers", answers_of(cells)}}},
          directory.configuration()));
  if (flags.json) {
    for (const EvalResult& cell : cells) {
      fmt::print("{}\n", to_cell(cell).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return;
  }
  print_report(cells, grid, settings, directory);
  print_score(cells, missing);
}

/// The grid as an evaluation: one task, and a method for each index.
EvalPlan eval_plan(const NeedleFlags& flags, const NeedleOptions& options, const Model& model,
                   const TaskTokens& tokens) {
  EvalPlan eval{.tasks = {needle_grid_task(tokens, options.grid)},
                .lengths = options.lengths,
                .all_questions = true,
                .seed = options.grid.seed,
                .prefill = prefill_options(flags.prefill, flags.retrieval),
                .sampling = sampling_options(flags.sampling),
                .recall = flags.recall,
                .methods_flag = "--kv-index",
                .version = version()};
  const std::int64_t layers = model.config().attention.layers;
  for (const std::string& index : options.indices) {
    eval.methods.push_back({.name = index,
                            .options = retrieval_options(flags.retrieval, layers, index, 1),
                            .budgets = false,
                            .topk = flags.retrieval.k});
    if (model.device().is_cuda() && IndexSpec(index).grows()) {
      eval.prefill.indices.push_back(index);
    }
  }
  return eval;
}

/// Steps of all sessions that decoded one token.
struct Profile {
  std::vector<StepTimes> layers;
  std::int64_t steps = 0;
  double seconds = 0;

  void add(const Session& session, const Answer& answer) {
    add_difference(layers, session.step_times(), answer.before_decoding);
    steps += answer.result.steps;
    seconds += answer.result.decode_seconds;
  }
};

void note_finished_cells(const EvalDirectory& directory, const NeedleOptions& options,
                         std::int64_t missing, ProgressBar& progress) {
  const std::int64_t total =
      std::ssize(options.lengths) * std::ssize(options.grid.depths) * std::ssize(options.indices);
  if (missing == total) return;
  progress.note(fmt::format("{}: {} of {} cells are finished",
                            printable(directory.file("").parent_path().string()), total - missing,
                            total));
}

int run_needle(NeedleFlags flags) {
  catch_interrupts();
  NeedleOptions options = make_options(flags);
  const ModelConfig config = check_model(flags.model, flags.retrieval);
  options.indices = flags.retrieval.indices;
  check_rows(config.attention, options.lengths.back() + options.grid.predict + 1,
             prefill_options(flags.prefill, flags.retrieval));
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  const Json run_config = configuration(flags, options, threads.threads(), device.name());
  EvalDirectory directory(flags.output.empty() ? default_eval_directory(run_config, cells_format())
                                               : std::filesystem::path(flags.output),
                          run_config, flags.fresh, cells_format());
  for (std::string& index : options.indices) {
    index = spelled_in(directory.configuration().at("kv_index"), index);
  }
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, flags.prefill, flags.retrieval, progress);
  check_indices(device, config.attention, flags.retrieval, options.lengths.back());
  const TaskTokens tokens{[&](std::string_view text) { return model.tokenizer().encode(text); },
                          model.tokenizer().beginning_tokens()};
  const EvalPlan eval = eval_plan(flags, options, model, tokens);
  // Recall is measured in a second session beside the first.
  check_rows(config.attention,
             options.lengths.back() + eval.tasks.front().beyond + 1 +
                 (flags.recall ? options.grid.question_tokens(tokens) + 1 : 0),
             eval.prefill);
  Profile profile;
  EvalRun run(model, eval, directory,
              {.stage = [&](const std::string& stage,
                            const Progress& /*answers*/) { return progress.callback(stage); },
               .answered = [&](const Session& session,
                               const Answer& answer) { profile.add(session, answer); }});
  int status = 0;
  try {
    note_finished_cells(directory, options, run.missing(), progress);
    run.check();
    run.run();
    if (flags.profile) {
      std::fputs(
          profile_table(profile.layers, profile.steps, profile.seconds, line_width(stderr)).c_str(),
          stderr);
    }
  } catch (const Interrupted&) {
    progress.note("interrupted: run the same command again to continue");
    status = interrupted_status();
  }
  progress.finish();
  if (device.is_cuda()) progress.note(fmt::format("GPU memory: {}", memory_account(device)));
  if (status == 0 || !directory.results().empty()) finish(flags, options, directory, run.missing());
  return status;
}

}  // namespace

Run add_needle(CLI::App& app) {
  const auto flags = std::make_shared<NeedleFlags>();
  FlagBinder bind(*add_command(app, "needle"));
  visit_flags(*flags, bind);
  return [flags] { return run_needle(*flags); };
}

}  // namespace topkv::cli
