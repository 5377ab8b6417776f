// `topkv bench`: attention alone, timed over generated rows.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/bench/bench_report.h"
#include "src/cli/bench/bench_run.h"
#include "src/cli/commands.h"
#include "src/cli/flags/bench_options.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/terminal.h"

namespace topkv::cli {
namespace {

int run_bench(const BenchFlags& flags, const CLI::App& command) {
  const BenchOptions bench_options = make_options(flags, command);
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  ProgressBar progress = stderr_progress();
  const BenchReport report = flags.what == "decode"
                                 ? run_bench_decode(bench_options, device, progress)
                                 : run_bench_prefill(bench_options, device, progress);
  progress.finish();
  if (!flags.json) {
    fmt::print("{}", bench_text(report, flags.profile, line_width(stdout)));
    return 0;
  }
  for (const Json& line : bench_json(report, flags.profile)) {
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return 0;
}

}  // namespace

Run add_bench(CLI::App& app) {
  CLI::App* command = add_command(app, "bench");
  const auto flags = std::make_shared<BenchFlags>();
  bind_flags(*command, *flags);
  return [flags, command] { return run_bench(*flags, *command); };
}

}  // namespace topkv::cli
