#include "src/cli/flags/eval_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/cli/flags/arguments.h"
#include "src/cli/flags/output_paths.h"
#include "src/cli/flags/run_settings.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/io/files.h"
#include "src/eval/tasks/wonderwords.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t default_samples = 20;

bool wants(const EvalSettings& settings, const char* task) {
  return std::ranges::find(settings.tasks, task) != settings.tasks.end();
}

void check_essays(const std::string& directory) {
  if (directory.empty()) return;
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    throw UsageError(
        fmt::format("--essays: expected a directory of *.txt and *.md files, found '{}'",
                    printable(directory)));
  }
  check_haystack_flag(directory);
}

void check_qa(const EvalFlags& flags, const EvalSettings& settings) {
  const bool qa = wants(settings, "qa");
  if (qa && flags.questions.empty()) {
    throw UsageError("--questions is missing; task qa needs a file of them, in JSON lines");
  }
  if (!qa && (!flags.questions.empty() || !flags.files.empty())) {
    throw UsageError(fmt::format("{}: belongs to task qa; add qa to --tasks, or leave it out",
                                 flags.questions.empty() ? "--file" : "--questions"));
  }
  if (qa) check_readable(flags.questions);
  for (const std::filesystem::path& file : settings.sources.files) check_readable(file);
}

void check_output(const EvalFlags& flags, const EvalSettings& settings) {
  if (flags.output.empty()) return;
  std::vector<Input> inputs = inputs_of(flags.model.directory, "--essays", flags.essays);
  for (const std::filesystem::path& file : settings.sources.files) inputs.push_back({"-f", file});
  if (!flags.questions.empty()) inputs.push_back({"--questions", flags.questions});
  check_output_directory(
      flags.output,
      {"run.json", "samples.jsonl", "summary.csv", "scores.csv", "scores.svg", "report.html"},
      inputs);
}

/// "a.txt,b.md", and several of these.
std::vector<std::filesystem::path> files_of(const std::vector<std::string>& lists) {
  std::vector<std::filesystem::path> files;
  for (const std::string& list : lists) {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      files.emplace_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return files;
}

}  // namespace

void add_flags(CLI::App& command, EvalFlags& flags) {
  add_flags(command, flags.model);
  add_flags(command, flags.retrieval);
  // Methods say these.
  for (const char* one : {"--kv-index", "--kv-topk", "--kv-tail", "--kv-mass", "--kv-error"}) {
    command.remove_option(command.get_option(one));
  }
  flags.prefill.mode = "dense";
  add_flags(command, flags.prefill);
  command.add_option("--tasks", flags.tasks, "tasks such as ruler,passkey,tables");
  command.add_option("--lengths", flags.lengths, "tokens such as 4096,128K,1M");
  command.add_option("--methods", flags.methods, "methods such as 'dense;exact;codes'");
  command.add_option("--budgets", flags.budgets, "numbers of rows such as 64,256");
  command.add_option("--samples", flags.samples, "a number of samples");
  command.add_option("--seed", flags.seed, "a whole number");
  command.add_option("--essays", flags.essays, "a directory of *.txt and *.md files");
  command.add_option("-f,--file", flags.files, "files of text, with commas between them")
      ->expected(1)
      ->take_all();
  command.add_option("--questions", flags.questions, "a file of questions in JSON lines");
  command.add_option("-o,--output", flags.output, "a directory");
  command.add_flag("--fresh", flags.fresh);
  command.add_flag("--json", flags.json);
}

EvalSettings make_settings(const EvalFlags& flags) {
  check_flags(flags.model);
  check_flags(flags.retrieval);
  check_flags(flags.prefill);
  EvalSettings settings;
  try {
    settings.tasks = parse_tasks(flags.tasks);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--tasks: {}", error.what()));
  }
  settings.lengths = parse_counts("--lengths", flags.lengths);
  settings.budgets = parse_counts("--budgets", flags.budgets);
  std::ranges::sort(settings.lengths);
  std::ranges::sort(settings.budgets);
  settings.all_questions = flags.samples.empty();
  settings.samples = settings.all_questions ? default_samples
                                            : parse_count("--samples", flags.samples, 1, 1'000'000);
  settings.seed = parse_seed("--seed", flags.seed);
  check_essays(flags.essays);
  settings.sources = {flags.essays, files_of(flags.files), flags.questions};
  check_qa(flags, settings);
  check_output(flags, settings);
  return settings;
}

std::vector<Method> make_methods(const EvalFlags& flags, const ModelConfig& config) {
  try {
    return parse_methods(flags.methods,
                         {config.attention.head_dim, config.attention.layers,
                          retrieval_options(flags.retrieval, config.attention.layers, "exact", 1)});
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--methods: {}", error.what()));
  }
}

Json configuration(const EvalFlags& flags, const EvalSettings& settings,
                   const std::vector<Method>& methods, std::int64_t threads,
                   const std::string& device) {
  Json json;
  json["version"] = version();
  json["model"] = absolute_path(flags.model.directory);
  json["tasks"] = settings.tasks;
  json["lengths"] = settings.lengths;
  json["methods"] = Json::array();
  for (const Method& method : methods) json["methods"].push_back(method.name);
  json["budgets"] = settings.budgets;
  json["samples"] = settings.samples;
  json["seed"] = settings.seed;
  json["words"] = wonder_lists;
  json["essays"] = flags.essays.empty() ? "generated" : absolute_path(flags.essays);
  if (wants(settings, "qa")) {
    json["files"] = Json::array();
    for (const std::filesystem::path& file : settings.sources.files) {
      json["files"].push_back(absolute_path(file.string()));
    }
    json["questions"] = absolute_path(flags.questions);
  }
  add_settings(json, flags.retrieval);
  add_settings(json, flags.prefill);
  add_settings(json, flags.model);
  json["threads"] = threads;
  json["device"] = device;
  return json;
}

}  // namespace topkv::cli
