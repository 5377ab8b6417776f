#include "src/cli/flags/bench_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

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

// The modes that are timed without --prefill choose no keys: flags of this choice have no effect.
void refuse_choice(const CLI::App& command, const FlagGroup& of_prefill) {
  for (const Flag& flag : of_prefill.flags) {
    if (flag.needs != "--prefill" || command.count(flag.names) == 0) continue;
    if (std::ranges::find(flag.needed_values, "window") != flag.needed_values.end()) continue;
    throw UsageError(
        fmt::format("{}: has no effect with --prefill dense and window, which are timed by "
                    "default; leave it out, or give --prefill sparse",
                    flag.names));
  }
}

// What can be known of them without the shape.
void check_decode(const BenchFlags& flags, BenchOptions& options) {
  options.tokens = flags.tokens;
  options.after = flags.after;
  check_tail(flags.retrieval.tail);
  check_differ("--sessions", flags.sessions);
  check_differ("--kv-topk", flags.ks);
  for (const std::string& k : flags.ks) {
    RetrievalFlags retrieval = flags.retrieval;
    retrieval.k = k;
    check_flags(retrieval);
  }
}

void plan_decode(const BenchFlags& flags, BenchOptions& options) {
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& k : flags.ks) {
      RetrievalFlags retrieval = flags.retrieval;
      retrieval.k = k;
      for (const std::int64_t sessions : flags.sessions) {
        options.rows.push_back(retrieval_options(retrieval, options.shape.layers, index,
                                                 options.after + options.tokens));
        options.ks.push_back(k);
        options.sessions.push_back(sessions);
      }
    }
  }
}

void plan_prefill(const BenchFlags& flags, BenchOptions& options) {
  options.chunk = flags.prefill.chunk.value_or(0);
  options.last_chunk = flags.at.has_value();
  std::vector<std::string> modes = flags.modes;
  if (modes.empty()) modes = {"dense", "window"};
  check_differ("--prefill", modes);
  for (const std::string& mode : modes) {
    PrefillFlags prefill = flags.prefill;
    prefill.mode = mode;
    options.attention.push_back(prefill_attention(prefill, PrefillAttention().sinks));
  }
}

}  // namespace

void bind_flags(CLI::App& command, BenchFlags& flags) {
  FlagBinder bind(command);
  bind.operand(flags.what);
  bind.all(flags);
}

BenchOptions make_options(BenchFlags flags, const CLI::App& command) {
  const std::vector<FlagGroup>& groups = help_of("bench").groups;  // rows, decode, prefill
  if (flags.what == "decode") {
    refuse(command, groups[2], "decode", "prefill");
  } else {
    refuse(command, groups[1], "prefill", "decode");
  }
  if (flags.what == "prefill" && flags.modes.empty()) refuse_choice(command, groups[2]);
  if (flags.what == "prefill" && flags.context.has_value() == flags.at.has_value()) {
    throw UsageError("-c: give the tokens of a whole prefill, or --at to time one chunk");
  }
  if (flags.what == "decode" && !flags.context) {
    throw UsageError("-c: give the tokens of the context");
  }
  BenchOptions options;
  options.context = flags.context ? *flags.context : *flags.at;
  options.seed = flags.seed;
  options.memory_budget = flags.prefill.memory.value_or(0);
  if (flags.what == "decode") {
    check_decode(flags, options);
  } else {
    plan_prefill(flags, options);
  }
  options.name = printable(flags.shape);
  options.shape = bench_shape(flags.shape);
  options.all_layers = options.shape.layers;
  if (flags.layers) options.shape = first_layers(options.shape, *flags.layers);
  if (flags.what == "decode") {
    name_index(flags.retrieval, options.shape);
    check_flags(flags.retrieval);
    plan_decode(flags, options);
  }
  return options;
}

}  // namespace topkv::cli
