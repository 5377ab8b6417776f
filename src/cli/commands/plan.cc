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
#include "src/context/prefill_visibility.h"
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
  DraftFlags drafts;         // model and window
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
  request.turns = turn_attention(flags.prefill, PrefillAttention().sinks);
  request.draft_model = flags.drafts.model;
  request.drafts = draft_model_options(flags.drafts);
  if (!flags.gpu_memory.empty()) {
    if (flags.device == "cpu")
      throw UsageError("--gpu-mem does not go with --device cpu; give one of them");
    request.gpu_memory = parse_bytes("--gpu-mem", flags.gpu_memory);
  } else if (flags.device != "cpu") {
    request.gpu_memory = Device::open(flags.device).memory().ceiling;
  }
  return request;
}

/// What reading a text takes, and what it would take if each token attended all before it.
struct Reading {
  PrefillAttention attention = {};  // with the mode that is planned
  double dense_flop = 0;            // of attention alone
  double sparse_flop = 0;           // if each token attends as many keys as it may
  bool host = false;                // which computes
  bool can_be_sparse = true;        // on the device that computes

  /// What a few cores of a CPU do, as an order: whoever knows theirs can divide.
  static constexpr double host_flops = 100e9;
  bool long_on_host() const {
    constexpr double long_wait = 600;  // seconds
    return host && dense_flop / host_flops > long_wait;
  }
  Prefill mode() const { return attention.mode; }
  double flop() const { return mode() == Prefill::dense ? dense_flop : sparse_flop; }
  std::string text_of(double flop) const {
    const double tera = flop / 1e12;
    const std::string text =
        (tera < 9.5 ? fmt::format("{:.1g}", tera) : format_grouped(std::llround(tera))) + " TFLOP";
    return host ? fmt::format("{}, {} at {:.0f} GFLOP/s", text, format_seconds(flop / host_flops),
                              host_flops / 1e9)
                : text;
  }
};

/// The pairs of a query and a key of `tokens` tokens that attend up to `most` keys each.
double pairs_of(std::int64_t tokens, std::int64_t most) {
  const auto first = static_cast<double>(std::min(tokens, most));  // these attend all
  return first * first / 2 + (static_cast<double>(tokens) - first) * static_cast<double>(most);
}

Reading reading_of(const PrefillAttention& attention, const PlanRequest& request,
                   const AttentionShape& shape) {
  Reading reading{.attention = attention, .host = request.gpu_memory == 0};
  reading.can_be_sparse = sparse_refusal(shape, attention, !reading.host).empty();
  const std::int64_t chosen = attention.mode == Prefill::window ? 0 : attention.keys;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.is_attention(layer)) continue;
    const std::int64_t window = shape.window_of(layer);
    const std::int64_t all = window > 0 ? window : request.tokens;
    const std::int64_t some = std::min(all, attention.window + attention.sinks + chosen);
    // A multiplication and an addition for each element of a key, and of a value.
    const double pair = 4 * static_cast<double>(shape.q_heads * shape.head_dim_of(layer));
    reading.dense_flop += pair * pairs_of(request.tokens, all);
    reading.sparse_flop += pair * pairs_of(request.tokens, some);
  }
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
  json["prefill"] = name_of(plan.prefill.mode);
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

/// What the attention of the prefill takes; beside it the other way, where that is far off.
void print_reading(const Reading& reading) {
  const PrefillAttention& attention = reading.attention;
  if (reading.mode() == Prefill::sparse && reading.sparse_flop < reading.dense_flop) {
    fmt::print("prefill   sparse: a token attends up to {} keys: {}; dense prefill takes {}\n",
               format_grouped(attention.keys + attention.window + attention.sinks),
               reading.text_of(reading.sparse_flop), reading.text_of(reading.dense_flop));
  } else if (reading.mode() == Prefill::dense && reading.long_on_host()) {
    const std::string other =
        reading.can_be_sparse
            ? fmt::format("--prefill sparse takes {} at most", reading.text_of(reading.sparse_flop))
            : "this model has no sparse prefill";
    fmt::print("prefill   dense: {}; {}\n", reading.text_of(reading.dense_flop), other);
  } else if (reading.mode() == Prefill::window) {
    fmt::print("prefill   window: a token attends {} keys: {}; dense prefill takes {}\n",
               format_grouped(attention.window + attention.sinks),
               reading.text_of(reading.sparse_flop), reading.text_of(reading.dense_flop));
  } else {
    fmt::print("prefill   {}: {}\n", name_of(reading.mode()), reading.text_of(reading.flop()));
  }
}

/// The flags that name the prefill, as they are given to other commands.
std::string prefill_text(const PrefillFlags& flags) {
  std::string text = flags.mode == "auto" ? "" : " --prefill " + flags.mode;
  const PrefillAttention usual;
  if (flags.window != usual.window) text += fmt::format(" --prefill-window {}", flags.window);
  if (flags.keys != usual.keys) text += fmt::format(" --prefill-keys {}", flags.keys);
  if (flags.mass != usual.mass)
    text += fmt::format(" --prefill-mass {}", flags.mass ? fmt::format("{}", *flags.mass) : "none");
  return text;
}

/// The flags that name the draft model, as they are given to other commands.
std::string draft_flags_text(const DraftFlags& flags, bool gpu) {
  if (flags.model.empty()) return {};
  std::string text = " --draft-model " + printable(flags.model);
  if (flags.window) text += fmt::format(" --draft-window {}", *flags.window);
  return gpu ? text + " --draft lookup" : text;
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

/// The plan that is shown: the chosen one, or the nearest if nothing fits.
const MemoryPlan& shown_of(const MemoryPlan* chosen, const MemoryPlan* up) {
  return chosen != nullptr ? *chosen : *up;
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
  const MemoryPlan& shown = shown_of(chosen, up);
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
  print_reading(reading);
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
             prefill_text(flags.prefill) + draft_flags_text(flags.drafts, !shown.gpu.items.empty()),
             shown.gpu.items.empty()    ? " --device cpu"
             : flags.gpu_memory.empty() ? ""
                                        : " --gpu-mem " + flags.gpu_memory);
}

int run_plan(const PlanFlags& flags) {
  check_flags(flags.drafts);
  PlanRequest request = request_of(flags);
  const ModelConfig config = described_model(flags.directory);
  request.prefill = prefill_attention(flags.prefill, PrefillAttention().sinks);
  for (const std::string& warning : config.warnings) print_warning(warning);
  if (const std::string line = config.beyond_reach(request.tokens); !line.empty())
    print_warning(line);
  const std::vector<MemoryPlan> plans = memory_plans(flags.directory, request);
  const MemoryPlan* chosen = best_fitting_plan(plans);
  const MemoryPlan* up = next_better_plan(plans, chosen);
  const Reading reading = reading_of(shown_of(chosen, up).prefill, request, config.attention);
  const bool weights_here = Model::has_weights(flags.directory);
  if (flags.json) {
    Json json;
    json["weights_here"] = weights_here;
    json["tokens"] = request.tokens;
    json["prefill"] = name_of(reading.mode());
    json["prefill_flop"] = reading.flop();
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
  bind.all(flags->retrieval, flags->prefill, flags->drafts);
  bind("--json", flags->json);
  return [flags] {
    resolve_model_flag(flags->directory, flags->argument, "plan");
    return run_plan(*flags);
  };
}

}  // namespace topkv::cli
