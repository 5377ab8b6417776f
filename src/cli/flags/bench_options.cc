#include "src/cli/flags/bench_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>

#include "src/cli/flags/arguments.h"
#include "src/cli/flags/bench_shape.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t fewest_tokens = 10;  // below, a 90th percentile says nothing
constexpr std::int64_t fewest_before = 4;   // to warm up

// Flags of one of the two measurements alone.
constexpr const char* of_decode[] = {
    "--kv-index",       "--kv-topk",         "--kv-window", "--kv-sinks", "--kv-select",
    "--kv-host-search", "--kv-dense-layers", "--kv-tail",   "--kv-mass",  "--kv-error",
    "--sessions",       "--tokens",          "--after",     "--profile"};
constexpr const char* of_prefill[] = {"--prefill", "--prefill-window", "--chunk", "--at"};

template <std::size_t count>
void refuse(const CLI::App& command, const char* const (&flags)[count], const std::string& what,
            const char* other) {
  for (const char* flag : flags) {
    if (command.count(flag) == 0) continue;
    throw UsageError(
        fmt::format("{}: belongs to topkv bench {}, not to {}; leave it out", flag, other, what));
  }
}

void check_differ(const char* flag, const std::vector<std::string>& values) {
  std::set<std::string> seen;
  for (const std::string& value : values) {
    if (seen.insert(value).second) continue;
    throw UsageError(fmt::format("{}: {} is given twice; expected different ones", flag, value));
  }
}

// What can be known of them without the shape.
void check_decode(const BenchFlags& flags, BenchPlan& plan) {
  plan.tokens = parse_count("--tokens", flags.tokens, fewest_tokens);
  plan.after = parse_count("--after", flags.after, fewest_before);
  check_tail(flags.retrieval.tail);
  for (const std::string& sessions : flags.sessions) parse_count("--sessions", sessions);
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
      for (const std::string& sessions : flags.sessions) {
        plan.rows.push_back(
            retrieval_options(retrieval, plan.shape.layers, index, plan.after + plan.tokens));
        plan.ks.push_back(k);
        plan.sessions.push_back(parse_count("--sessions", sessions));
      }
    }
  }
}

void plan_prefill(const BenchFlags& flags, BenchPlan& plan) {
  plan.chunk = flags.chunk == "auto" ? 0 : parse_count("--chunk", flags.chunk);
  plan.last_chunk = !flags.at.empty();
  const std::int64_t window = parse_count("--prefill-window", flags.prefill_window);
  std::vector<std::string> modes = flags.modes;
  if (modes.empty()) modes = {"dense", "window"};
  check_differ("--prefill", modes);
  for (const std::string& mode : modes) {
    plan.attention.push_back({mode == "dense" ? Prefill::dense : Prefill::window, window});
  }
}

}  // namespace

void add_flags(CLI::App& command, BenchFlags& flags) {
  one_of(command.add_option("bench", flags.what), {"decode", "prefill"})->required();
  command
      .add_option("--shape", flags.shape,
                  "llama3-8b, qwen2.5-7b-1m, needle-14m or the path of a config.json")
      ->required();
  command.add_option("-c,--ctx", flags.context, "a count of tokens such as 128K");
  command.add_option("--layers", flags.layers, "a number of layers");
  add_flags(command, flags.model);
  command.remove_option(command.get_option("--model"));  // a shape stands in for it
  command.remove_option(command.get_option("--weights"));
  add_flags(command, flags.retrieval);
  command.remove_option(command.get_option("--kv-topk"));  // here several may be given
  command.add_option("--kv-topk", flags.ks, "rows per layer such as 64")->expected(1)->take_all();
  command.add_option("--sessions", flags.sessions, "a number such as 4")->expected(1)->take_all();
  command.add_option("--tokens", flags.tokens, "a count of 10 or more");
  command.add_option("--after", flags.after, "a count of 4 or more");
  one_of(command.add_option("--prefill", flags.modes)->expected(1)->take_all(),
         {"dense", "window"});
  command.add_option("--prefill-window", flags.prefill_window, "a count such as 1024");
  command.add_option("--chunk", flags.chunk, "a number of tokens, or auto");
  command.add_option("--mem", flags.memory, "a size such as 100GiB");
  command.add_option("--at", flags.at, "a count of tokens such as 1M");
  command.add_option("--seed", flags.seed, "a whole number");
  command.add_flag("--profile", flags.profile);
  command.add_flag("--json", flags.json);
}

BenchPlan bench_plan(BenchFlags flags, const CLI::App& command) {
  if (flags.what == "decode") {
    refuse(command, of_prefill, "decode", "prefill");
  } else {
    refuse(command, of_decode, "prefill", "decode");
  }
  if (flags.what == "prefill" && flags.context.empty() == flags.at.empty()) {
    throw UsageError("-c: give the tokens of a whole prefill, or --at to time one chunk");
  }
  if (flags.what == "decode" && flags.context.empty()) {
    throw UsageError("-c: give the tokens of the context");
  }
  check_flags(flags.model);
  BenchPlan plan;
  plan.context =
      flags.context.empty() ? parse_count("--at", flags.at) : parse_count("-c", flags.context);
  plan.seed = parse_seed("--seed", flags.seed);
  plan.memory_budget = flags.memory.empty() ? 0 : parse_bytes("--mem", flags.memory);
  const std::int64_t layers = flags.layers.empty() ? 0 : parse_count("--layers", flags.layers);
  if (flags.what == "decode") {
    check_decode(flags, plan);
  } else {
    plan_prefill(flags, plan);
  }
  plan.name = printable(flags.shape);
  plan.shape = bench_shape(flags.shape);
  plan.all_layers = plan.shape.layers;
  if (layers > 0) plan.shape = first_layers(plan.shape, layers);
  if (flags.what == "decode") {
    name_index(flags.retrieval, plan.shape);
    check_flags(flags.retrieval);
    plan_decode(flags, plan);
  }
  return plan;
}

}  // namespace topkv::cli
