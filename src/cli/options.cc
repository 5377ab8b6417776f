#include "src/cli/options.h"

#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>

#include "src/cli/numbers.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv::cli {

void add_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("-m,--model", flags.directory)->required();
  command.add_option("-t,--threads", flags.threads)->check(CLI::Range(0, 4096));
  command.add_option("--device", flags.device);
  command.add_option("--gpu-mem", flags.gpu_memory);
}

void add_flags(CLI::App& command, RetrievalFlags& flags) {
  command.add_option("--kv-index", flags.indices)->expected(1)->take_all();
  command.add_option("--kv-topk", flags.k);
  command.add_option("--kv-window", flags.window);
  command.add_option("--kv-sinks", flags.sinks);
  command.add_option("--kv-select", flags.select)->check(CLI::IsMember({"query_head", "group"}));
  command.add_option("--kv-dense-layers", flags.dense_layers);
  command.add_option("--kv-attend", flags.attend_on)
      ->check(CLI::IsMember({"auto", "host", "device"}));
}

void add_flags(CLI::App& command, PrefillFlags& flags) {
  command.add_option("--prefill", flags.mode)->check(CLI::IsMember({"dense", "window"}));
  command.add_option("--prefill-window", flags.window);
  command.add_option("--chunk", flags.chunk);
  command.add_option("--kv-dtype", flags.dtype)->check(CLI::IsMember({"bf16", "f16", "f32"}));
  command.add_option("--mem", flags.memory);
}

void add_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("-n,--predict", flags.predict);
  command.add_option("--temp", flags.temperature)->check(CLI::Range(0.0, 100.0));
  command.add_option("--top-p", flags.top_p)->check(CLI::Range(0.0, 1.0));
  command.add_option("--top-k", flags.top_k);
  command.add_option("--seed", flags.seed);
}

RetrievalOptions retrieval_options(const RetrievalFlags& flags, std::int64_t layers,
                                   const std::string& index, std::int64_t capacity) {
  RetrievalOptions options;
  options.index = index;
  options.k = TopK::parse(flags.k);
  options.k.resolve(layers);
  options.select_by = flags.select == "group" ? SelectBy::group : SelectBy::query_head;
  options.dense_layers = flags.dense_layers == "all"
                             ? layers
                             : parse_count("--kv-dense-layers", flags.dense_layers, 0);
  if (options.dense_layers > layers) {
    throw UsageError(fmt::format("--kv-dense-layers: the model has {} layers, found {}", layers,
                                 flags.dense_layers));
  }
  options.window = parse_count("--kv-window", flags.window);
  options.sinks = parse_count("--kv-sinks", flags.sinks, 0);
  options.capacity = capacity;
  options.attend_on = flags.attend_on == "host"     ? AttendOn::host
                      : flags.attend_on == "device" ? AttendOn::device
                                                    : AttendOn::automatic;
  return options;
}

PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval) {
  PrefillOptions options;
  options.attention.mode = flags.mode == "dense" ? Prefill::dense : Prefill::window;
  options.attention.window = parse_count("--prefill-window", flags.window);
  options.attention.sinks = parse_count("--kv-sinks", retrieval.sinks, 0);
  options.chunk = flags.chunk == "auto" ? 0 : parse_count("--chunk", flags.chunk);
  options.kv_dtype = parse_dtype(flags.dtype);
  options.memory_budget = flags.memory.empty() ? 0 : parse_bytes("--mem", flags.memory);
  return options;
}

Device open_device(const ModelFlags& flags) {
  return Device::open(flags.device,
                      flags.gpu_memory.empty() ? 0 : parse_bytes("--gpu-mem", flags.gpu_memory));
}

SamplingOptions sampling_options(const SamplingFlags& flags) {
  return {flags.temperature, parse_count("--top-k", flags.top_k, 0), flags.top_p, flags.seed};
}

void check_flags(const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                 const SamplingFlags& sampling) {
  try {
    const TopK k = TopK::parse(retrieval.k);
    if (k.schedule == TopK::Schedule::same) k.resolve(1);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-topk: {}", error.what()));
  }
  if (retrieval.dense_layers != "all") {
    parse_count("--kv-dense-layers", retrieval.dense_layers, 0);
  }
  parse_count("--kv-window", retrieval.window);
  parse_count("--kv-sinks", retrieval.sinks, 0);
  std::set<std::string> seen;
  for (const std::string& spec : retrieval.indices) {
    if (!seen.insert(spec).second) {
      throw UsageError(fmt::format("--kv-index: '{}' is given twice", spec));
    }
    try {
      make_index(spec);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("--kv-index: {}", error.what()));
    }
  }
  prefill_options(prefill, retrieval);
  sampling_options(sampling);
  if (!sampling.predict.empty()) parse_count("-n", sampling.predict);
}

std::vector<Token> beginning_tokens(const Tokenizer& tokenizer) {
  const std::vector<Token> plain = tokenizer.encode("a");
  const std::vector<Token> full = tokenizer.encode("a", true);
  const auto text = std::search(full.begin(), full.end(), plain.begin(), plain.end());
  return {full.begin(), text};
}

struct ThreadLimit::Control {
  explicit Control(std::size_t threads)
      : control(oneapi::tbb::global_control::max_allowed_parallelism, threads) {}
  oneapi::tbb::global_control control;
};

ThreadLimit::ThreadLimit(std::int64_t threads)
    : control_(threads > 0 ? std::make_unique<Control>(static_cast<std::size_t>(threads))
                           : nullptr) {}

ThreadLimit::~ThreadLimit() = default;

std::int64_t ThreadLimit::threads() const {
  const std::size_t allowed = oneapi::tbb::global_control::active_value(
      oneapi::tbb::global_control::max_allowed_parallelism);
  return static_cast<std::int64_t>(allowed);
}

std::int64_t peak_memory_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

std::string version() { return TOPKV_VERSION; }

}  // namespace topkv::cli
