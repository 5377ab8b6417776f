#include "src/cli/needle_options.h"

#include <algorithm>
#include <filesystem>

#include "src/cli/haystack.h"
#include "src/cli/numbers.h"

namespace topkv::cli {

void add_flags(CLI::App& command, NeedleFlags& flags) {
  add_flags(command, flags.model);
  add_flags(command, flags.retrieval);
  flags.prefill.mode = "window";
  add_flags(command, flags.prefill);
  add_flags(command, flags.sampling);
  command.add_option("-c,--ctx", flags.lengths);
  command.add_option("--depths", flags.depths);
  command.add_option("--haystack", flags.haystack);
  command.add_option("--needle", flags.style);
  command.add_option("--needle-text", flags.custom.text);
  command.add_option("--question", flags.custom.question);
  command.add_option("--answer", flags.custom.answer);
  command.add_flag("--separate", flags.separate);
  command.add_option("-o,--output", flags.output);
  command.add_flag("--kv-recall", flags.recall);
  command.add_flag("--profile", flags.profile);
  command.add_flag("--fresh", flags.fresh);
  command.add_flag("--json", flags.json);
}

NeedlePlan make_plan(const NeedleFlags& flags) {
  NeedleStyle style = NeedleTask::parse_style(flags.style);
  const CustomNeedle& custom = flags.custom;
  if (!custom.text.empty() || !custom.question.empty() || !custom.answer.empty()) {
    if (custom.text.empty() || custom.question.empty() || custom.answer.empty()) {
      throw UsageError("--needle-text, --question and --answer belong together; one is missing");
    }
    style = NeedleStyle::custom;
  }
  NeedlePlan plan{parse_counts("-c", flags.lengths),
                  parse_depths("--depths", flags.depths),
                  NeedleTask(style, custom),
                  flags.haystack,
                  flags.separate,
                  0};
  std::sort(plan.lengths.begin(), plan.lengths.end());
  check_haystack(flags.haystack);
  plan.separate = flags.separate || plan.task.one_per_context();
  check_flags(flags.retrieval, flags.prefill, flags.sampling);
  plan.predict = flags.sampling.predict.empty() ? plan.task.default_predict()
                                                : parse_count("-n", flags.sampling.predict);
  return plan;
}

Json configuration(const NeedleFlags& flags, const NeedlePlan& plan, std::int64_t threads,
                   const std::string& device) {
  const auto absolute = [](const std::string& path) {
    return std::filesystem::weakly_canonical(path).string();
  };
  const bool named =
      plan.haystack == "noise" || plan.haystack == "needles" || plan.haystack == "generated";
  Json json;
  json["version"] = version();
  json["model"] = absolute(flags.model.directory);
  json["lengths"] = plan.lengths;
  json["depths"] = plan.depths;
  json["haystack"] = named ? plan.haystack : absolute(plan.haystack);
  json["needle"] = plan.task.style() == NeedleStyle::custom ? "custom" : flags.style;
  if (plan.task.style() == NeedleStyle::custom) {
    json["needle_text"] = flags.custom.text;
    json["question"] = flags.custom.question;
    json["answer"] = flags.custom.answer;
  }
  json["separate"] = plan.separate;
  json["predict"] = plan.predict;
  json["kv_index"] = flags.retrieval.indices;
  json["kv_topk"] = flags.retrieval.k;
  json["kv_window"] = parse_count("--kv-window", flags.retrieval.window);
  json["kv_sinks"] = parse_count("--kv-sinks", flags.retrieval.sinks, 0);
  json["kv_select"] = flags.retrieval.select;
  json["kv_recall"] = flags.recall;
  json["kv_dense_layers"] = flags.retrieval.dense_layers;
  json["kv_dtype"] = flags.prefill.dtype;
  json["prefill"] = flags.prefill.mode;
  if (flags.prefill.mode == "window") {
    json["prefill_window"] = parse_count("--prefill-window", flags.prefill.window);
  }
  json["chunk"] = flags.prefill.chunk;
  json["temperature"] = flags.sampling.temperature;
  json["top_p"] = flags.sampling.top_p;
  json["top_k"] = parse_count("--top-k", flags.sampling.top_k, 0);
  json["seed"] = flags.sampling.seed;
  json["threads"] = threads;
  json["device"] = device;
  json["gpu_mem"] = flags.model.gpu_memory;
  json["kv_attend"] = flags.retrieval.attend_on;
  return json;
}

}  // namespace topkv::cli
