// `topkv plan`: what of a model and a context fits which memory, and how.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/report.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"

namespace topkv::cli {
namespace {

struct PlanFlags {
  std::string directory;
  std::string argument;  // the same, without -m
  std::int64_t tokens = 0;
  std::string device;
  std::string gpu_memory;  // empty: what is here
  // Empty: the plan chooses.
  std::string weights;
  RetrievalFlags retrieval;  // index and host search
  PrefillFlags prefill;      // mode, format and memory of rows
  bool json = false;
};

PlanRequest request_of(const PlanFlags& flags) {
  PlanRequest request;
  request.tokens = flags.tokens;
  request.memory = flags.prefill.memory.value_or(0);
  if (!flags.weights.empty()) request.weights = parse_weight_format(flags.weights);
  if (!flags.prefill.dtype.empty()) request.rows = KvDType::parse(flags.prefill.dtype);
  if (!flags.retrieval.indices.empty()) request.index = flags.retrieval.indices.front();
  request.host_search = flags.retrieval.host_search;
  if (!flags.gpu_memory.empty()) {
    if (flags.device == "cpu")
      throw UsageError("--gpu-mem does not go with --device cpu; give one of them");
    request.gpu_memory = parse_bytes("--gpu-mem", flags.gpu_memory);
  } else if (flags.device != "cpu") {
    request.gpu_memory = Device::open(flags.device).memory().ceiling;
  }
  return request;
}

/// What reading the text densely takes, each token attending all before it, and whether it is to be
/// read so.
struct Reading {
  double dense_flop = 0;  // of attention alone
  bool host = false;      // which computes
  Prefill mode = Prefill::dense;

  /// What a few cores of a CPU do, as an order: whoever knows theirs can divide.
  static constexpr double host_flops = 100e9;
  double host_seconds() const { return dense_flop / host_flops; }
  bool long_on_host() const {
    constexpr double long_wait = 600;  // seconds
    return host && host_seconds() > long_wait;
  }
};

Reading reading_of(const PlanFlags& flags, const PlanRequest& request,
                   const AttentionShape& shape) {
  Reading reading{.host = request.gpu_memory == 0};
  const auto tokens = static_cast<double>(request.tokens);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.is_attention(layer)) continue;
    const auto window = static_cast<double>(shape.window_of(layer));
    const double pairs = window > 0 && window < tokens ? tokens * window : tokens * tokens / 2;
    // A multiplication and an addition for each element of a key, and of a value.
    reading.dense_flop += 4 * pairs * static_cast<double>(shape.q_heads * shape.head_dim_of(layer));
  }
  const bool window =
      flags.prefill.mode.empty() ? reading.long_on_host() : flags.prefill.mode == "window";
  reading.mode = window ? Prefill::window : Prefill::dense;
  return reading;
}

Json json_of(const PlacePlan& place) {
  Json json;
  for (const MemoryItem& item : place.items)
    json["items"].push_back({{"what", item.what}, {"bytes", item.bytes}});
  json["peak"] = place.peak;
  json["limit"] = place.limit;
  json["reads_per_token"] = place.reads;
  json["fits"] = place.fits();
  return json;
}

Json json_of(const MemoryPlan& plan) {
  Json json;
  json["weights"] = name_of(plan.weights);
  json["kv_dtype"] = plan.rows.name();
  json["kv_index"] = plan.index;
  json["flags"] = plan.flags();
  json["fits"] = plan.fits();
  json["missing_bytes"] = plan.missing();
  json["loss"] = plan.loss;
  if (!plan.gpu.items.empty()) json["gpu"] = json_of(plan.gpu);
  json["host"] = json_of(plan.host);
  return json;
}

void print_place(const char* name, const PlacePlan& place) {
  fmt::print("{} memory, {}\n", name, byte_text(place.limit));
  for (const MemoryItem& item : place.items)
    fmt::print("  {:<44} {:>10}\n", item.what, byte_text(item.bytes));
  fmt::print("  {:<44} {:>10}\n\n", "at most at a time", byte_text(place.peak));
}

void print_speed(const char* name, const PlacePlan& place) {
  if (place.reads == 0) return;
  const double gb = static_cast<double>(place.reads) / 1e9;
  fmt::print(
      "speed     a token reads {:.3g} GB of {} memory: at most {:.3g} tokens/s for each 100 "
      "GB/s it has\n",
      gb, name, 100 / gb);
}

/// Where dense prefill would take long: how long, and the other way.
void print_reading(const PlanFlags& flags, const Reading& reading) {
  if (!reading.long_on_host() || flags.prefill.mode == "window") return;
  const std::string dense =
      fmt::format("{} TFLOP of attention, {} at {:.0f} GFLOP/s",
                  format_grouped(std::llround(reading.dense_flop / 1e12)),
                  format_seconds(reading.host_seconds()), Reading::host_flops / 1e9);
  if (reading.mode == Prefill::window) {
    fmt::print(
        "prefill   window: each token attends to the first and the latest tokens only; dense "
        "prefill takes {}\n",
        dense);
  } else {
    fmt::print("prefill   dense: {}; --prefill window takes far less\n", dense);
  }
}

/// "2.1GiB more of the GPU's memory and 3GiB more of the host's"
std::string missing_text(const MemoryPlan& plan) {
  std::string text;
  if (!plan.gpu.fits()) {
    text = fmt::format("{} more of the GPU's memory", byte_text(plan.gpu.peak - plan.gpu.limit));
  }
  if (!plan.host.fits()) {
    text += fmt::format("{}{} more of the host's memory", text.empty() ? "" : " and ",
                        byte_text(plan.host.peak - plan.host.limit));
  }
  return text;
}

/// What to change where nothing fits: the index, or the length.
void print_ways_out(const PlanFlags& flags, PlanRequest request) {
  if (flags.retrieval.indices.empty()) {
    PlanRequest exact = request;
    exact.index = "exact";
    const std::vector<MemoryPlan> plans = memory_plans(flags.directory, exact);
    if (const MemoryPlan* chosen = best_fitting_plan(plans)) {
      fmt::print("fits      {}\n", chosen->flags());
    } else {
      fmt::print("too much  --kv-index exact does not fit either\n");
    }
  }
  constexpr std::int64_t step = 1024;
  const bool shorter = request.tokens > step;
  std::int64_t fitting = 0;  // in steps
  std::int64_t too_many = (request.tokens + step - 1) / step;
  while (too_many - fitting > 1) {
    const std::int64_t middle = fitting + (too_many - fitting) / 2;
    request.tokens = middle * step;
    const bool fits = best_fitting_plan(memory_plans(flags.directory, request)) != nullptr;
    (fits ? fitting : too_many) = middle;
  }
  if (fitting > 0) {
    fmt::print("fits      {} tokens\n", format_grouped(fitting * step));
  } else if (shorter) {
    fmt::print(
        "too much  {} tokens do not fit either: the parts that every length needs are too large\n",
        format_grouped(step));
  }
}

void print_text(const std::vector<MemoryPlan>& plans, const MemoryPlan* chosen,
                const MemoryPlan* up, const PlanFlags& flags, const Reading& reading,
                std::int64_t tokens) {
  const MemoryPlan& shown = chosen != nullptr ? *chosen : *up;
  if (chosen != nullptr) {
    fmt::print("{} tokens: the most exact of {} ways that fits\n\n  {}\n\n", format_grouped(tokens),
               plans.size(), shown.flags());
  } else {
    fmt::print("{} tokens: none of {} ways fits; the nearest is\n\n  {}\n\n",
               format_grouped(tokens), plans.size(), shown.flags());
  }
  if (!shown.gpu.items.empty()) print_place("GPU", shown.gpu);
  print_place("host", shown.host);
  if (!shown.gpu.items.empty()) print_speed("GPU", shown.gpu);
  print_speed("host", shown.host);
  print_reading(flags, reading);
  if (chosen == nullptr) {
    fmt::print("missing   {}\n", missing_text(shown));
    return;
  }
  if (up != nullptr) {
    fmt::print("better    {} needs {}\n", up->flags(), missing_text(*up));
  } else {
    fmt::print("better    nothing: this is the most exact there is\n");
  }
  fmt::print("run       topkv generate -m {} {}{}{} -f FILE -p QUESTION\n",
             printable(flags.directory), shown.flags(),
             reading.mode == Prefill::dense ? "" : " --prefill window",
             shown.gpu.items.empty()    ? " --device cpu"
             : flags.gpu_memory.empty() ? ""
                                        : " --gpu-mem " + flags.gpu_memory);
}

int run_plan(const PlanFlags& flags) {
  PlanRequest request = request_of(flags);
  const ModelConfig config = described_model(flags.directory);
  const Reading reading = reading_of(flags, request, config.attention);
  request.prefill.mode = reading.mode;
  for (const std::string& warning : config.warnings) print_warning(warning);
  if (const std::string line = config.beyond_reach(request.tokens); !line.empty())
    print_warning(line);
  const std::vector<MemoryPlan> plans = memory_plans(flags.directory, request);
  const MemoryPlan* chosen = best_fitting_plan(plans);
  const MemoryPlan* up = next_better_plan(plans, chosen);
  const bool weights_here = Model::has_weights(flags.directory);
  if (flags.json) {
    Json json;
    json["weights_here"] = weights_here;
    json["tokens"] = request.tokens;
    json["prefill"] = reading.mode == Prefill::window ? "window" : "dense";
    json["dense_prefill_flop"] = reading.dense_flop;
    json["chosen"] = chosen == nullptr ? Json() : json_of(*chosen);
    json["one_step_up"] = up == nullptr ? Json() : json_of(*up);
    for (const MemoryPlan& plan : plans) json["plans"].push_back(json_of(plan));
    json["version"] = version();
    fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    if (!weights_here) fmt::print("weights   none yet: planned as config.json describes them\n\n");
    print_text(plans, chosen, up, flags, reading, request.tokens);
    if (chosen == nullptr) print_ways_out(flags, request);
  }
  return chosen == nullptr ? exit_error : 0;
}

}  // namespace

Run add_plan(CLI::App& app) {
  const auto flags = std::make_shared<PlanFlags>();
  FlagBinder bind(*add_command(app, "plan"));
  bind.operand(flags->argument);
  bind("--model", flags->directory);
  bind("--ctx", flags->tokens);
  bind("--device", flags->device);
  bind("--gpu-mem", flags->gpu_memory);
  bind("--weights", flags->weights);
  bind.all(flags->retrieval, flags->prefill);
  bind("--json", flags->json);
  return [flags] {
    resolve_model_flag(flags->directory, flags->argument, "plan");
    return run_plan(*flags);
  };
}

}  // namespace topkv::cli
