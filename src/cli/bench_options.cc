#include "src/cli/bench_options.h"

#include <fmt/format.h>

#include <set>

#include "src/cli/bench_shape.h"
#include "src/cli/numbers.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t fewest_tokens = 10;  // below, a 90th percentile says nothing

// Flags of one of the two measurements alone.
constexpr const char* of_decode[] = {"--kv-index",  "--kv-topk",   "--kv-window",
                                     "--kv-sinks",  "--kv-select", "--kv-dense-layers",
                                     "--kv-attend", "--tokens",    "--profile"};
constexpr const char* of_prefill[] = {"--prefill", "--prefill-window", "--chunk", "--at"};

template <std::size_t count>
void refuse(const CLI::App& command, const char* const (&flags)[count], const std::string& what,
            const char* other) {
  for (const char* flag : flags) {
    if (command.count(flag) == 0) continue;
    throw UsageError(fmt::format("{}: is of topkv bench {}, not of {}", flag, other, what));
  }
}

void plan_decode(const BenchFlags& flags, BenchPlan& plan) {
  plan.tokens = parse_count("--tokens", flags.tokens, fewest_tokens);
  std::set<std::string> seen;
  for (const std::string& k : flags.ks) {
    if (!seen.insert(k).second) throw UsageError(fmt::format("--kv-topk: {} is given twice", k));
  }
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& k : flags.ks) {
      RetrievalFlags retrieval = flags.retrieval;
      retrieval.k = k;
      check_flags(retrieval, {}, {});
      try {
        plan.rows.push_back(
            retrieval_options(retrieval, plan.shape.layers, index, warm_up_tokens + plan.tokens));
      } catch (const InvalidArgument& error) {
        throw UsageError(fmt::format("--kv-topk: {}", error.what()));
      }
      plan.ks.push_back(k);
    }
  }
}

void plan_prefill(const BenchFlags& flags, BenchPlan& plan) {
  plan.chunk = flags.chunk == "auto" ? 0 : parse_count("--chunk", flags.chunk);
  plan.last_chunk = !flags.at.empty();
  const std::int64_t window = parse_count("--prefill-window", flags.prefill_window);
  std::vector<std::string> modes = flags.modes;
  if (modes.empty()) modes = {"dense", "window"};
  std::set<std::string> seen;
  for (const std::string& mode : modes) {
    if (!seen.insert(mode).second) {
      throw UsageError(fmt::format("--prefill: {} is given twice", mode));
    }
    plan.attention.push_back({mode == "dense" ? Prefill::dense : Prefill::window, window});
  }
}

}  // namespace

void add_flags(CLI::App& command, BenchFlags& flags) {
  command.add_option("what", flags.what)->required()->check(CLI::IsMember({"decode", "prefill"}));
  command.add_option("--shape", flags.shape)->required();
  command.add_option("-c,--ctx", flags.context);
  command.add_option("--layers", flags.layers);
  add_flags(command, flags.model);
  command.remove_option(command.get_option("--model"));  // a shape stands in for it
  add_flags(command, flags.retrieval);
  command.remove_option(command.get_option("--kv-topk"));  // here several may be given
  command.add_option("--kv-topk", flags.ks)->expected(1)->take_all();
  command.add_option("--tokens", flags.tokens);
  command.add_option("--prefill", flags.modes)
      ->expected(1)
      ->take_all()
      ->check(CLI::IsMember({"dense", "window"}));
  command.add_option("--prefill-window", flags.prefill_window);
  command.add_option("--chunk", flags.chunk);
  command.add_option("--mem", flags.memory);
  command.add_option("--at", flags.at);
  command.add_option("--seed", flags.seed);
  command.add_flag("--profile", flags.profile);
  command.add_flag("--json", flags.json);
}

BenchPlan bench_plan(const BenchFlags& flags, const CLI::App& command) {
  if (flags.what == "prefill" && flags.context.empty() == flags.at.empty()) {
    throw UsageError("-c: give the tokens of a whole prefill, or with --at where to time a chunk");
  }
  if (flags.what == "decode" && flags.context.empty()) {
    throw UsageError("-c: give the tokens of the context");
  }
  BenchPlan plan;
  plan.context =
      flags.context.empty() ? parse_count("--at", flags.at) : parse_count("-c", flags.context);
  plan.name = flags.shape;
  plan.shape = bench_shape(flags.shape);
  plan.all_layers = plan.shape.layers;
  if (!flags.layers.empty()) {
    plan.shape = first_layers(plan.shape, parse_count("--layers", flags.layers));
  }
  plan.seed = flags.seed;
  plan.memory_budget = flags.memory.empty() ? 0 : parse_bytes("--mem", flags.memory);
  if (flags.what == "decode") {
    refuse(command, of_prefill, "decode", "prefill");
    plan_decode(flags, plan);
  } else {
    refuse(command, of_decode, "prefill", "decode");
    plan_prefill(flags, plan);
  }
  return plan;
}

}  // namespace topkv::cli
