// `topkv needle`: flags to plan, the run, and what is shown of it.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "src/cli/commands.h"
#include "src/cli/device_report.h"
#include "src/cli/files.h"
#include "src/cli/heatmap.h"
#include "src/cli/help.h"
#include "src/cli/interrupt.h"
#include "src/cli/needle_run.h"
#include "src/cli/numbers.h"
#include "src/cli/profile.h"
#include "src/cli/report.h"

namespace topkv::cli {
namespace {

bool colour_wanted() {
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

std::string model_name(const NeedleFlags& flags) {
  const auto path = std::filesystem::weakly_canonical(flags.model.directory);
  return path.filename().empty() ? path.string() : path.filename().string();
}

std::string settings_line(const NeedleFlags& flags, const NeedlePlan& plan) {
  const RetrievalFlags& kv = flags.retrieval;
  std::string text =
      fmt::format("top {} of {} by {}, window {}, sinks {}", kv.k,
                  kv.indices.size() == 1 ? kv.indices.front() : std::string("several indices"),
                  kv.select == "group" ? "group" : "query head", kv.window, kv.sinks);
  if (kv.dense_layers == "all") {
    text = "dense in all layers";
  } else if (kv.dense_layers != "0") {
    text += fmt::format(", first {} layers dense", kv.dense_layers);
  }
  text += fmt::format("; prefill {}", flags.prefill.mode);
  if (flags.prefill.mode == "window") text += " " + flags.prefill.window;
  if (flags.prefill.dtype != "bf16") text += fmt::format("; rows {}", flags.prefill.dtype);
  if (flags.sampling.temperature > 0) {
    text += fmt::format("; temperature {:g}", flags.sampling.temperature);
  }
  return fmt::format("{}; haystack {}", text, plan.haystack);
}

void print_report(const std::vector<Cell>& cells, const Grid& grid, const NeedleFlags& flags,
                  const NeedlePlan& plan, const RunDirectory& directory) {
  ForwardTimes prefill;
  ForwardTimes answers;
  std::int64_t peak = 0;
  std::int64_t gpu_peak = 0;
  for (const Cell& cell : cells) {
    prefill += cell.prefill_times;
    answers += cell.answer_times;
    peak = std::max(peak, cell.peak_memory_bytes);
    gpu_peak = std::max(gpu_peak, cell.gpu_peak_bytes);
  }
  const std::vector<Summary> summaries = summarise(cells);
  fmt::print("{}\n", answers_table(cells));
  fmt::print("{}\n", terminal_heatmap(grid, colour_wanted()));
  fmt::print("{}\n", summary_table(summaries));
  fmt::print("settings      {}\n", settings_line(flags, plan));
  fmt::print("prefill time  {}\n", time_shares(prefill));
  fmt::print("answer time   {}\n", time_shares(answers));
  fmt::print("device        {}\n", cells.empty() ? "-" : cells.back().device);
  fmt::print("peak memory   {}\n", format_bytes(peak));
  if (gpu_peak > 0) fmt::print("GPU memory    {} at most\n", format_bytes(gpu_peak));
  fmt::print("files         {}/: cells.jsonl summary.csv heatmap.svg run.json\n",
             directory.file("").parent_path().string());
}

void print_score(const std::vector<Cell>& cells, std::size_t wanted) {
  std::int64_t found = 0;
  for (const Cell& cell : cells) found += cell.found ? 1 : 0;
  const double percent =
      cells.empty() ? 0 : 100.0 * static_cast<double>(found) / static_cast<double>(cells.size());
  fmt::print("score         {} of {} found ({:.0f} %)", found, cells.size(), percent);
  if (cells.size() < wanted) fmt::print(", {} cells not run", wanted - cells.size());
  fmt::print("\n");
}

void finish(const NeedleFlags& flags, const NeedlePlan& plan, const RunDirectory& directory) {
  const std::vector<Cell> cells = in_grid_order(directory.cells(), flags.retrieval.indices);
  const Grid grid = make_grid(cells, plan.lengths, plan.depths, flags.retrieval.indices);
  write_file(directory.file("summary.csv"), summary_csv(summarise(cells)));
  write_file(directory.file("heatmap.svg"),
             svg_heatmap(grid, fmt::format("Needles found by {}", model_name(flags)),
                         settings_line(flags, plan)));
  if (flags.json) {
    for (const Cell& cell : cells) {
      fmt::print("{}\n", to_json(cell).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return;
  }
  print_report(cells, grid, flags, plan, directory);
  print_score(cells, plan.lengths.size() * plan.depths.size() * flags.retrieval.indices.size());
}

int run_needle(const NeedleFlags& flags) {
  catch_interrupts();
  const NeedlePlan plan = make_plan(flags);
  const ThreadLimit threads(flags.model.threads);
  const Device device = open_device(flags.model);
  RunDirectory directory(flags.output, configuration(flags, plan, threads.threads(), device.name()),
                         flags.fresh);
  const Model model = load_model(flags.model.directory, device, flags.prefill, flags.retrieval);
  ProgressBar progress = stderr_progress();
  int status = 0;
  try {
    NeedleRun run(model, flags, plan, directory, progress);
    run.run();
    if (flags.profile) {
      std::fputs(
          profile_table(run.profile().layers, run.profile().steps, run.profile().seconds).c_str(),
          stderr);
    }
  } catch (const Interrupted&) {
    progress.note("interrupted: the same command goes on from here");
    status = interrupted_status();
  }
  progress.finish();
  if (device.is_cuda()) progress.note(fmt::format("GPU memory: {}", memory_account(device)));
  if (status == 0 || !directory.cells().empty()) finish(flags, plan, directory);
  return status;
}

}  // namespace

Run add_needle(CLI::App& app) {
  CLI::App* command = add_command(app, "needle", needle_help);
  const auto flags = std::make_shared<NeedleFlags>();
  add_flags(*command, *flags);
  return [flags] { return run_needle(*flags); };
}

}  // namespace topkv::cli
