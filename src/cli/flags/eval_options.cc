#include "src/cli/flags/eval_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/cli/flags/output_paths.h"
#include "src/cli/flags/run_config.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/io/files.h"
#include "src/eval/tasks/wonderwords.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

bool wants(const EvalOptions& options, const char* task) {
  return std::ranges::find(options.tasks, task) != options.tasks.end();
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

void check_qa(const EvalFlags& flags, const EvalOptions& options) {
  const bool qa = wants(options, "qa");
  if (qa && flags.questions.empty()) {
    throw UsageError("--questions is missing; task qa needs a file of them, in JSON lines");
  }
  if (!qa && (!flags.questions.empty() || !flags.files.empty())) {
    throw UsageError(fmt::format("{}: belongs to task qa; add qa to --tasks, or leave it out",
                                 flags.questions.empty() ? "--file" : "--questions"));
  }
  if (qa) check_readable(flags.questions);
  for (const std::filesystem::path& file : options.sources.files) check_readable(file);
}

void check_output(const EvalFlags& flags, const EvalOptions& options) {
  if (flags.output.empty()) return;
  std::vector<Input> inputs = inputs_of(flags.model.directory, "--essays", flags.essays);
  for (const std::filesystem::path& file : options.sources.files) inputs.push_back({"-f", file});
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

EvalOptions make_options(const EvalFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  EvalOptions options;
  try {
    options.tasks = parse_tasks(flags.tasks);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--tasks: {}", error.what()));
  }
  options.lengths = parse_counts("--lengths", flags.lengths);
  options.budgets = parse_counts("--budgets", flags.budgets);
  std::ranges::sort(options.lengths);
  std::ranges::sort(options.budgets);
  options.all_questions = !flags.samples;
  options.samples = flags.samples.value_or(20);
  options.seed = flags.seed;
  check_essays(flags.essays);
  options.sources = {flags.essays, files_of(flags.files), flags.questions};
  check_qa(flags, options);
  check_output(flags, options);
  return options;
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

Json configuration(EvalFlags flags, const EvalOptions& options, const std::vector<Method>& methods,
                   std::int64_t threads, const std::string& device) {
  Json json;
  json["version"] = version();
  json["model"] = absolute_path(flags.model.directory);
  const ConfigWriter write(json, "eval");
  const auto write_in_order = [&](std::string_view name, const auto& value) {
    if (name == "--essays") json["words"] = wonder_lists;  // which is no flag
    write(name, value);
  };
  visit_flags(flags, write_in_order);
  json["tasks"] = options.tasks;
  json["lengths"] = options.lengths;
  json["methods"] = Json::array();
  for (const Method& method : methods) json["methods"].push_back(method.name);
  json["budgets"] = options.budgets;
  json["samples"] = options.samples;
  json["essays"] = flags.essays.empty() ? "generated" : absolute_path(flags.essays);
  if (wants(options, "qa")) {
    json["files"] = Json::array();
    for (const std::filesystem::path& file : options.sources.files) {
      json["files"].push_back(absolute_path(file.string()));
    }
    json["questions"] = absolute_path(flags.questions);
  } else {
    json.erase("files");
    json.erase("questions");
  }
  resolve_settings(json, flags.prefill, threads, device);
  return json;
}

}  // namespace topkv::cli
