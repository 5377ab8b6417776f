// `topkv needle`: flags to plan, the run, and what is shown of it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/needle_run.h"
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

namespace topkv::cli {
namespace {

std::string settings_line(const NeedleFlags& flags, const NeedlePlan& plan,
                          const std::vector<std::string>& indices) {
  const RetrievalFlags& kv = flags.retrieval;
  std::string text =
      fmt::format("top {} of {} by {}, window {}, sinks {}", kv.k,
                  indices.size() == 1 ? indices.front() : std::string("several indices"),
                  kv.select == "group" ? "group" : "query head", kv.window, kv.sinks);
  if (!kv.tail.empty()) text += ", tail " + tail_text(kv.tail);
  if (kv.mass != "none") text += ", mass " + kv.mass;
  if (kv.error != "none") text += ", error " + kv.error;
  if (kv.dense_layers == "all") {
    text = "dense in all layers";
  } else if (kv.dense_layers != "0") {
    text += fmt::format(", first {} layers dense", kv.dense_layers);
  }
  text += fmt::format("; prefill {}", flags.prefill.mode);
  if (flags.prefill.mode == "window") text += " " + flags.prefill.window;
  if (flags.prefill.dtype != "bf16") text += fmt::format("; rows {}", flags.prefill.dtype);
  if (const double heat = sampling_options(flags.sampling).temperature; heat > 0) {
    text += fmt::format("; temperature {:g}", heat);
  }
  if (plan.ruler_length) text += "; lengths as RULER counts them";
  return fmt::format("{}; haystack {}", text, printable(plan.haystack));
}

void print_report(const std::vector<Cell>& cells, const Grid& grid, const std::string& settings,
                  const RunDirectory& directory) {
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

std::string score_text(const std::vector<Cell>& cells) {
  std::int64_t found = 0;
  for (const Cell& cell : cells) found += cell.found ? 1 : 0;
  const double percent =
      cells.empty() ? 0 : 100.0 * static_cast<double>(found) / static_cast<double>(cells.size());
  return fmt::format("{} of {} found ({:.0f} %)", found, cells.size(), percent);
}

void print_score(const std::vector<Cell>& cells, std::int64_t not_run) {
  std::string text = score_text(cells);
  if (not_run > 0) text += fmt::format(", {} cells not run", not_run);
  fmt::print("{}", labelled("score", text, line_width(stdout)));
}

// Shows all that the directory holds, of this run and earlier ones.
void finish(const NeedleFlags& flags, const NeedlePlan& plan, const RunDirectory& directory) {
  const auto indices = directory.configuration().at("kv_index").get<std::vector<std::string>>();
  const auto lengths = directory.configuration().at("lengths").get<std::vector<std::int64_t>>();
  const std::vector<Cell> cells = in_grid_order(directory.cells(), indices);
  const Grid grid = make_grid(cells, lengths, plan.depths, indices);
  const std::string settings = settings_line(flags, plan, indices);
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
    for (const Cell& cell : cells) {
      fmt::print("{}\n", to_json(cell).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return;
  }
  print_report(cells, grid, settings, directory);
  print_score(cells, missing_cells(plan, directory));
}

int run_needle(NeedleFlags flags) {
  catch_interrupts();
  NeedlePlan plan = make_plan(flags);
  const ModelConfig config = check_model(flags.model, flags.retrieval);
  plan.indices = flags.retrieval.indices;
  check_rows(config.attention, plan.lengths.back() + plan.predict + 1,
             prefill_options(flags.prefill, flags.retrieval));
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  const Json settings = configuration(flags, plan, threads.threads(), device.name());
  RunDirectory directory(
      flags.output.empty() ? default_directory(settings) : std::filesystem::path(flags.output),
      settings, flags.fresh);
  for (std::string& index : plan.indices) {
    index = spelled_in(directory.configuration().at("kv_index"), index);
  }
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, flags.prefill, flags.retrieval, progress);
  check_indices(device, config.attention, flags.retrieval, plan.lengths.back());
  int status = 0;
  try {
    NeedleRun run(model, flags, plan, directory, progress);
    run.run();
    if (flags.profile) {
      std::fputs(profile_table(run.profile().layers, run.profile().steps, run.profile().seconds,
                               line_width(stderr))
                     .c_str(),
                 stderr);
    }
  } catch (const Interrupted&) {
    progress.note("interrupted: run the same command again to continue");
    status = interrupted_status();
  }
  progress.finish();
  if (device.is_cuda()) progress.note(fmt::format("GPU memory: {}", memory_account(device)));
  if (status == 0 || !directory.cells().empty()) finish(flags, plan, directory);
  return status;
}

}  // namespace

Run add_needle(CLI::App& app) {
  CLI::App* command = add_command(app, "needle");
  const auto flags = std::make_shared<NeedleFlags>();
  add_flags(*command, *flags);
  return [flags] { return run_needle(*flags); };
}

}  // namespace topkv::cli
