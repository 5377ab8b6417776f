// `topkv eval`: flags to plan, the run, and what is shown of it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/eval_options.h"
#include "src/cli/flags/run_config.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/memory/peak_memory.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/score_files.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

/// prefill: the flags with the mode of all contexts.
std::string settings_line(const EvalFlags& flags, const PrefillFlags& prefill) {
  const RetrievalFlags& kv = flags.retrieval;
  std::string text = fmt::format("window {}, sinks {}, rows by {}", kv.window, kv.sinks,
                                 kv.select == "group" ? "group" : "query head");
  if (!kv.dense_layers) text += ", all layers dense";
  text = settings_text(std::move(text), kv, prefill);
  text += fmt::format("; prose {}", flags.essays.empty() ? "generated" : printable(flags.essays));
  return text + fmt::format("; seed {}", flags.seed);
}

void print_lines(const std::vector<EvalResult>& results) {
  for (const EvalResult& result : results) {
    fmt::print("{}\n", to_json(result).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

// Shows all that the directory holds, of this run and earlier ones, and writes what is made of it.
void finish(const EvalFlags& flags, const EvalDirectory& directory, std::int64_t missing) {
  const std::string settings = settings_line(flags, as_read(flags.prefill, directory.results()));
  const ScoreFiles files =
      write_scores(directory, fmt::format("Scores of {}", model_name(flags.model)), settings);
  if (flags.json) {
    print_lines(directory.results());
    return;
  }
  const std::size_t width = line_width(stdout);
  const auto line = [&](const char* label, const std::string& text) {
    fmt::print("{}", labelled(label, text, width));
  };
  if (!files.table.rows.empty()) {
    fmt::print("{}\n", format_table(result_table(files.table), {.width = width, .keys = 5}));
    line("", scores_note);
  }
  line("settings", settings);
  line("device", directory.results().empty() ? "-" : directory.results().back().device);
  line("peak memory", byte_text(peak_memory_bytes()));
  line("files", fmt::format("{}/: samples.jsonl summary.csv scores.csv {}report.html run.json",
                            printable(directory.file("").parent_path().string()),
                            files.picture ? "scores.svg " : ""));
  line("answers", fmt::format("{}{}", directory.results().size(),
                              missing > 0 ? fmt::format(", {} missing", missing) : ""));
}

/// Throws OutOfMemory when rows or codes would not fit.
void check_memory(const EvalFlags& flags, const ModelConfig& config, std::int64_t length,
                  const std::vector<Method>& methods, const Device& device) {
  check_rows(config.attention, length + 1, prefill_options(flags.prefill, flags.retrieval));
  RetrievalFlags retrieval = flags.retrieval;
  for (const Method& method : methods) {
    const std::string& index = method.options.index;
    if (std::ranges::find(retrieval.indices, index) == retrieval.indices.end()) {
      retrieval.indices.push_back(index);
    }
  }
  check_indices(device, config.attention, retrieval, length);
}

int run_eval(const EvalFlags& flags) {
  catch_interrupts();
  const EvalOptions options = make_options(flags);
  const ModelConfig config = ModelConfig::load(flags.model.directory);
  EvalPlan plan;
  plan.methods = make_methods(flags, config);
  plan.lengths = options.lengths;
  plan.budgets = options.budgets;
  plan.samples = options.samples;
  plan.all_questions = options.all_questions;
  plan.seed = options.seed;
  plan.prefill = prefill_options(flags.prefill, flags.retrieval);
  for (const Method& method : plan.methods) {
    plan.prefill.keep_queries = plan.prefill.keep_queries || learns_queries(method.options.index);
  }
  plan.methods_flag = "--methods";
  plan.version = version();
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  const Json run_config =
      configuration(flags, options, plan.methods, threads.threads(), device.name());
  EvalDirectory directory(flags.output.empty() ? default_eval_directory(run_config)
                                               : std::filesystem::path(flags.output),
                          run_config, flags.fresh);
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, flags.prefill, flags.retrieval, progress);
  check_memory(flags, config, options.lengths.back(), plan.methods, device);
  const Tokenizer& tokenizer = model.tokenizer();
  plan.tasks = make_eval_tasks(
      options.tasks,
      {[&](std::string_view text) { return tokenizer.encode(text); }, tokenizer.beginning_tokens()},
      options.sources);
  const ProgressFn report = progress.callback("eval");
  EvalRun run(
      model, plan, directory,
      {.stage = [&](const std::string& /*stage*/,
                    const Progress& answers) { return [&](const Progress&) { report(answers); }; },
       .note = [&](const std::string& line) { progress.note(line); }});
  int status = 0;
  try {
    run.check();
    if (const auto there = std::ssize(directory.results()); there > 0) {
      progress.note(fmt::format("{}: {} answers are finished",
                                printable(directory.file("").parent_path().string()), there));
    }
    run.run();
  } catch (const Interrupted&) {
    progress.note("interrupted: run the same command again to continue");
    status = interrupted_status();
  }
  progress.finish();
  if (device.is_cuda()) progress.note(fmt::format("GPU memory: {}", memory_account(device)));
  if (status == 0 || !directory.results().empty()) finish(flags, directory, run.missing());
  return status;
}

}  // namespace

Run add_eval(CLI::App& app) {
  const auto flags = std::make_shared<EvalFlags>();
  FlagBinder bind(*add_command(app, "eval"));
  visit_flags(*flags, bind);
  return [flags] { return run_eval(*flags); };
}

}  // namespace topkv::cli
