#include "src/cli/flags/needle_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/cli/flags/arguments.h"
#include "src/cli/flags/output_paths.h"
#include "src/cli/flags/run_settings.h"
#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/eval/tasks/haystack.h"

namespace topkv::cli {
namespace {

// In the order of NeedleStyle.
constexpr std::array<std::string_view, 4> style_names = {"number", "word", "uuid", "passkey"};

NeedleStyle parse_style(std::string_view name) {
  for (std::size_t i = 0; i < style_names.size(); ++i) {
    if (name == style_names[i]) return static_cast<NeedleStyle>(i);
  }
  const std::vector<std::string> known(style_names.begin(), style_names.end());
  const std::string near = nearest(name, known);
  throw UsageError(fmt::format("--needle: expected number, word, uuid or passkey, found '{}'{}",
                               name, did_you_mean(near)));
}

}  // namespace

void add_flags(CLI::App& command, NeedleFlags& flags) {
  add_flags(command, flags.model);
  add_flags(command, flags.retrieval);
  flags.prefill.mode = "window";
  add_flags(command, flags.prefill);
  add_flags(command, flags.sampling);
  command.add_option("-c,--ctx", flags.lengths, "tokens such as 4096,128K,1M");
  command.add_option("--depths", flags.depths, "a number of depths, or percent such as 5,50,95");
  command.add_option("--haystack", flags.haystack, "generated, noise, needles or a directory");
  command.add_option("--needle", flags.style, "number, word, uuid or passkey");
  command.add_option("--needle-text", flags.custom.text, "a sentence");
  command.add_option("--question", flags.custom.question, "a question");
  command.add_option("--answer", flags.custom.answer, "an answer");
  command.add_flag("--ruler-length", flags.ruler_length);
  command.add_flag("--separate", flags.separate);
  command.add_option("-o,--output", flags.output, "a directory");
  command.add_flag("--kv-recall", flags.recall);
  command.add_flag("--profile", flags.profile);
  command.add_flag("--fresh", flags.fresh);
  command.add_flag("--json", flags.json);
}

NeedlePlan make_plan(const NeedleFlags& flags) {
  check_flags(flags.model);
  check_flags(flags.retrieval);
  check_flags(flags.prefill);
  check_flags(flags.sampling);
  NeedleStyle style = parse_style(flags.style);
  const CustomNeedle& custom = flags.custom;
  if (!custom.text.empty() || !custom.question.empty() || !custom.answer.empty()) {
    if (custom.text.empty() || custom.question.empty() || custom.answer.empty()) {
      throw UsageError("--needle-text, --question and --answer belong together; one is missing");
    }
    check_utf8("--needle-text", custom.text);
    check_utf8("--question", custom.question);
    check_utf8("--answer", custom.answer);
    style = NeedleStyle::custom;
  }
  const NeedleTask task(style, custom);
  NeedlePlan plan{.lengths = parse_counts("-c", flags.lengths),
                  .indices = {},
                  .grid = {.task = task,
                           .depths = parse_depths("--depths", flags.depths),
                           .haystack = flags.haystack,
                           .separate = flags.separate || task.one_per_context(),
                           .ruler_length = flags.ruler_length,
                           .predict = flags.sampling.predict.empty()
                                          ? task.default_predict()
                                          : parse_count("-n", flags.sampling.predict),
                           .seed = parse_seed("--seed", flags.sampling.seed)}};
  std::sort(plan.lengths.begin(), plan.lengths.end());
  check_haystack_flag(flags.haystack);
  if (!flags.output.empty()) {
    check_output_directory(flags.output,
                           {"run.json", "cells.jsonl", "summary.csv", "heatmap.svg", "report.html"},
                           inputs_of(flags.model.directory, "--haystack", flags.haystack));
  }
  return plan;
}

Json configuration(const NeedleFlags& flags, const NeedlePlan& plan, std::int64_t threads,
                   const std::string& device) {
  // "64" and "064" are one setting; schedules stay as they were given.
  const NeedleGrid& grid = plan.grid;
  const TopK k = TopK::parse(flags.retrieval.k);
  const std::span<const std::string> names = haystack_names();
  const bool named = std::find(names.begin(), names.end(), grid.haystack) != names.end();
  const SamplingOptions sampling = sampling_options(flags.sampling);
  Json json;
  json["version"] = version();
  json["model"] = absolute_path(flags.model.directory);
  json["lengths"] = plan.lengths;
  json["depths"] = grid.depths;
  json["haystack"] = named ? grid.haystack : absolute_path(grid.haystack);
  json["needle"] = grid.task.style() == NeedleStyle::custom ? "custom" : flags.style;
  if (grid.task.style() == NeedleStyle::custom) {
    json["needle_text"] = flags.custom.text;
    json["question"] = flags.custom.question;
    json["answer"] = flags.custom.answer;
  }
  json["ruler_length"] = grid.ruler_length;
  json["separate"] = grid.separate;
  json["predict"] = grid.predict;
  json["kv_index"] = plan.indices;
  json["kv_topk"] =
      k.schedule == TopK::Schedule::same ? std::to_string(k.value) : flags.retrieval.k;
  add_settings(json, flags.retrieval);
  if (!flags.retrieval.tail.empty()) json["kv_tail"] = tail_text(flags.retrieval.tail);
  for (const auto& [name, rule] : {std::pair("kv_mass", mass_of(flags.retrieval)),
                                   std::pair("kv_error", error_of(flags.retrieval))}) {
    if (rule) json[name] = *rule;
  }
  json["kv_recall"] = flags.recall;
  add_settings(json, flags.prefill);
  json["temperature"] = sampling.temperature;
  json["top_p"] = sampling.top_p;
  json["top_k"] = sampling.top_k;
  json["seed"] = sampling.seed;
  add_settings(json, flags.model);
  json["threads"] = threads;
  json["device"] = device;
  return json;
}

}  // namespace topkv::cli
