#include "src/cli/flags/needle_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/cli/flags/output_paths.h"
#include "src/cli/flags/run_config.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/eval/tasks/haystack.h"

namespace topkv::cli {

NeedleOptions make_options(const NeedleFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  // The choices of the flag are in the order of NeedleStyle.
  const std::vector<std::string>& styles =
      find_flag(help_of("needle").groups, "--needle")->value.choices;
  auto style = static_cast<NeedleStyle>(std::ranges::find(styles, flags.style) - styles.begin());
  const CustomNeedle& custom = flags.custom;
  if (!custom.text.empty() || !custom.question.empty() || !custom.answer.empty()) {
    if (custom.text.empty() || custom.question.empty() || custom.answer.empty()) {
      throw UsageError("--needle-text, --question and --answer belong together; one is missing");
    }
    style = NeedleStyle::custom;
  }
  const NeedleTask task(style, custom);
  NeedleOptions options{.lengths = parse_counts("-c", flags.lengths),
                        .indices = {},
                        .grid = {.task = task,
                                 .depths = parse_depths("--depths", flags.depths),
                                 .haystack = flags.haystack,
                                 .separate = flags.separate || task.one_per_context(),
                                 .ruler_length = flags.ruler_length,
                                 .predict = flags.predict.value_or(task.default_predict()),
                                 .seed = flags.sampling.seed}};
  std::sort(options.lengths.begin(), options.lengths.end());
  check_haystack_flag(flags.haystack);
  if (!flags.output.empty()) {
    check_output_directory(flags.output,
                           {"run.json", "cells.jsonl", "summary.csv", "heatmap.svg", "report.html"},
                           inputs_of(flags.model.directory, "--haystack", flags.haystack));
  }
  return options;
}

Json configuration(NeedleFlags flags, const NeedleOptions& options, std::int64_t threads,
                   const std::string& device) {
  const NeedleGrid& grid = options.grid;
  const bool custom = grid.task.style() == NeedleStyle::custom;
  Json json;
  json["version"] = version();
  json["model"] = absolute_path(flags.model.directory);
  const ConfigWriter write(json, "needle");
  visit_flags(flags, write);
  json["lengths"] = options.lengths;
  json["depths"] = grid.depths;
  const std::span<const std::string> names = haystack_names();
  if (std::ranges::find(names, grid.haystack) == names.end())
    json["haystack"] = absolute_path(grid.haystack);
  if (custom) json["needle"] = "custom";
  json["separate"] = grid.separate;
  json["predict"] = grid.predict;
  json["kv_index"] = options.indices;
  // "64" and "064" are one setting; schedules stay as they were given.
  const TopK k = TopK::parse(flags.retrieval.k);
  if (k.schedule == TopK::Schedule::same) json["kv_topk"] = std::to_string(k.value);
  if (!flags.retrieval.tail.empty()) json["kv_tail"] = tail_text(flags.retrieval.tail);
  resolve_settings(json, flags.prefill, threads, device);
  return json;
}

}  // namespace topkv::cli
