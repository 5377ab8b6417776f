#include "src/cli/flags/bench_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>

#include "src/cli/flags/bench_shape.h"
#include "src/cli/flags/bind.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {
namespace {

// Refuses the flags of the other measurement.
void refuse(const CLI::App& command, const FlagGroup& of_other, const std::string& what,
            const char* other) {
  for (const Flag& flag : of_other.flags) {
    if (command.count(flag.names) == 0) continue;
    throw UsageError(fmt::format("{}: belongs to topkv bench {}, not to {}; leave it out",
                                 flag.names, other, what));
  }
}

template <class T>
void check_differ(const char* flag, const std::vector<T>& values) {
  std::set<T> seen;
  for (const T& value : values) {
    if (seen.insert(value).second) continue;
    throw UsageError(fmt::format("{}: {} is given twice; expected different ones", flag, value));
  }
}

// What can be known of them without the shape.
void check_decode(const BenchFlags& flags, BenchPlan& plan) {
  plan.tokens = flags.tokens;
  plan.after = flags.after;
  check_tail(flags.retrieval.tail);
  check_differ("--sessions", flags.sessions);
  check_differ("--kv-topk", flags.ks);
  for (const std::string& k : flags.ks) {
    RetrievalFlags retrieval = flags.retrieval;
    retrieval.k = k;
    check_flags(retrieval);
  }
}

void plan_decode(const BenchFlags& flags, BenchPlan& plan) {
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& k : flags.ks) {
      RetrievalFlags retrieval = flags.retrieval;
      retrieval.k = k;
      for (const std::int64_t sessions : flags.sessions) {
        plan.rows.push_back(
            retrieval_options(retrieval, plan.shape.layers, index, plan.after + plan.tokens));
        plan.ks.push_back(k);
        plan.sessions.push_back(sessions);
      }
    }
  }
}

void plan_prefill(const BenchFlags& flags, BenchPlan& plan) {
  plan.chunk = flags.prefill.chunk.value_or(0);
  plan.last_chunk = flags.at.has_value();
  std::vector<std::string> modes = flags.modes;
  if (modes.empty()) modes = {"dense", "window"};
  check_differ("--prefill", modes);
  for (const std::string& mode : modes) {
    plan.attention.push_back(
        {mode == "dense" ? Prefill::dense : Prefill::window, flags.prefill.window});
  }
}

}  // namespace

void bind_flags(CLI::App& command, BenchFlags& flags) {
  FlagBinder bind(command);
  bind.operand(flags.what);
  bind.all(flags);
}

BenchPlan bench_plan(BenchFlags flags, const CLI::App& command) {
  const std::vector<FlagGroup>& groups = help_of("bench").groups;  // rows, decode, prefill
  if (flags.what == "decode") {
    refuse(command, groups[2], "decode", "prefill");
  } else {
    refuse(command, groups[1], "prefill", "decode");
  }
  if (flags.what == "prefill" && flags.context.has_value() == flags.at.has_value()) {
    throw UsageError("-c: give the tokens of a whole prefill, or --at to time one chunk");
  }
  if (flags.what == "decode" && !flags.context) {
    throw UsageError("-c: give the tokens of the context");
  }
  BenchPlan plan;
  plan.context = flags.context ? *flags.context : *flags.at;
  plan.seed = flags.seed;
  plan.memory_budget = flags.prefill.memory.value_or(0);
  if (flags.what == "decode") {
    check_decode(flags, plan);
  } else {
    plan_prefill(flags, plan);
  }
  plan.name = printable(flags.shape);
  plan.shape = bench_shape(flags.shape);
  plan.all_layers = plan.shape.layers;
  if (flags.layers) plan.shape = first_layers(plan.shape, *flags.layers);
  if (flags.what == "decode") {
    name_index(flags.retrieval, plan.shape);
    check_flags(flags.retrieval);
    plan_decode(flags, plan);
  }
  return plan;
}

}  // namespace topkv::cli
