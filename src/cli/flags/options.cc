#include "src/cli/flags/options.h"

#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "src/cli/flags/arguments.h"
#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/eval/tasks/haystack.h"
#include "topkv/error.h"
#include "topkv/find_model.h"
#include "topkv/key_index.h"

namespace topkv::cli {

namespace {

constexpr const char* a_count = "a count such as 4096, 128K or 1M";
constexpr const char* a_size = "a size such as 512MiB or 8GiB";

std::int64_t cores() { return oneapi::tbb::info::default_concurrency(); }

// Device::open says the same, but looks for a GPU first.
void check_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || device == "cuda") return;
  const std::string number = device.starts_with("cuda:") ? device.substr(5) : "";
  const bool known = !number.empty() && number.size() <= 4 &&
                     number.find_first_not_of("0123456789") == std::string::npos;
  if (known) return;
  throw UsageError(fmt::format("--device: expected auto, cpu, cuda or cuda:N, found '{}'", device));
}

/// A number above 0, or none.
std::optional<double> parse_rule(std::string_view flag, const std::string& text, double most) {
  if (text == "none") return {};
  return parse_real(flag, text, 0, most, true);
}

/// A rule needs a tail with each of the indices.
void check_rules(const RetrievalFlags& flags) {
  const bool mass = mass_of(flags).has_value();
  if (!mass && !error_of(flags)) return;
  for (const std::string& spec : flags.indices) {
    if (flags.tail.empty() ? IndexSpec(spec).has_tail() : flags.tail != "none") continue;
    throw UsageError(fmt::format(
        "{}: expected a tail, which estimates the rows that are not found; {}; give --kv-tail "
        "codes for example",
        mass ? "--kv-mass" : "--kv-error",
        flags.tail.empty() ? fmt::format("index '{}' has none", spec) : "found --kv-tail none"));
  }
}

bool names_index(const std::string& tail) { return !tail.empty() && tail != "none"; }

}  // namespace

void add_flags(CLI::App& command, ModelFlags& flags) {
  command
      .add_option(
          "-m,--model", flags.directory,
          "the directory of a model, such as models/needle-14m, a GGUF file, or the name of "
          "a model that was downloaded, such as Qwen/Qwen3-8B")
      ->transform([](const std::string& model) { return find_model(model).string(); })
      ->required();
  command.add_option("-t,--threads", flags.threads, "a number of threads");
  command.add_option("--device", flags.device, "auto, cpu, cuda or cuda:N");
  command.add_option("--gpu-mem", flags.gpu_memory, a_size);
  one_of(command.add_option("--weights", flags.weights), {"stored", "int8", "int4"});
}

void add_flags(CLI::App& command, RetrievalFlags& flags) {
  command.add_option("--kv-index", flags.indices, "an index such as exact, ivf or hnsw:M=16")
      ->expected(1)
      ->take_all();
  command.add_option("--kv-tail", flags.tail,
                     "none, mean, or an index with codes of values, such as codes");
  command.add_option("--kv-topk", flags.k, "rows per layer such as 64 or uniform:512");
  command.add_option("--kv-mass", flags.mass, "a share of the attention such as 0.95, or none");
  command.add_option("--kv-error", flags.error, "a relative error such as 0.1, or none");
  command.add_option("--kv-window", flags.window, a_count);
  command.add_option("--kv-sinks", flags.sinks, a_count);
  one_of(command.add_option("--kv-select", flags.select), {"query_head", "group"});
  command.add_flag("--kv-host-search", flags.host_search);
  command.add_option("--kv-dense-layers", flags.dense_layers, "a number of layers, or all");
}

void add_flags(CLI::App& command, PrefillFlags& flags) {
  one_of(command.add_option("--prefill", flags.mode), {"dense", "window"});
  command.add_option("--prefill-window", flags.window, a_count);
  command.add_option("--chunk", flags.chunk, "a number of tokens, or auto");
  one_of(command.add_option("--kv-dtype", flags.dtype), kv_dtypes);
  command.add_option("--mem", flags.memory, a_size);
}

void add_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("-n,--predict", flags.predict, a_count);
  command.add_option("--temp", flags.temperature, "a number from 0 to 100");
  command.add_option("--top-p", flags.top_p, "a number above 0 and up to 1");
  command.add_option("--top-k", flags.top_k, a_count);
  command.add_option("--seed", flags.seed, "a whole number");
}

std::optional<double> mass_of(const RetrievalFlags& flags) {
  return parse_rule("--kv-mass", flags.mass, 0.999999);
}

std::optional<double> error_of(const RetrievalFlags& flags) {
  return parse_rule("--kv-error", flags.error, 100);
}

RetrievalOptions retrieval_options(const RetrievalFlags& flags, std::int64_t layers,
                                   const std::string& index, std::int64_t capacity) {
  RetrievalOptions options;
  options.index = index;
  try {
    options.k = TopK::parse(flags.k);
    options.k.resolve(layers);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-topk: {}", error.what()));
  }
  options.tail = tail_beside(flags.tail, index);
  options.mass = mass_of(flags);
  options.error = error_of(flags);
  options.select_by = flags.select == "group" ? SelectBy::group : SelectBy::query_head;
  options.host_search = flags.host_search;
  options.dense_layers = flags.dense_layers == "all"
                             ? layers
                             : parse_count("--kv-dense-layers", flags.dense_layers, 0);
  if (options.dense_layers > layers) {
    throw UsageError(fmt::format(
        "--kv-dense-layers: expected 0 to {}, the layers of the model, or all; found {}", layers,
        flags.dense_layers));
  }
  options.window = parse_count("--kv-window", flags.window);
  options.sinks = parse_count("--kv-sinks", flags.sinks, 0);
  options.capacity = capacity;
  return options;
}

bool learns_queries(const std::string& index) {
  try {
    return IndexSpec(index).learns_queries();
  } catch (const InvalidArgument&) {  // told where indices are checked
    return false;
  }
}

PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval) {
  PrefillOptions options;
  options.attention.mode = flags.mode == "dense" ? Prefill::dense : Prefill::window;
  options.attention.window = parse_count("--prefill-window", flags.window);
  options.attention.sinks = parse_count("--kv-sinks", retrieval.sinks, 0);
  options.chunk = flags.chunk == "auto" ? 0 : parse_count("--chunk", flags.chunk);
  options.kv_dtype = KvDType::parse(flags.dtype);
  options.memory_budget = flags.memory.empty() ? 0 : parse_bytes("--mem", flags.memory);
  options.keep_queries = std::ranges::any_of(retrieval.indices, learns_queries);
  return options;
}

void take_model(std::string& directory, const std::string& argument, const char* command) {
  if (directory.empty()) {
    if (argument.empty()) throw UsageError(fmt::format("no model given: topkv {} DIR", command));
    directory = argument;
  } else if (!argument.empty()) {
    throw UsageError(fmt::format("unexpected argument '{}' beside -m", argument));
  }
  directory = find_model(directory, ModelFiles::description).string();
}

ModelConfig described_model(const std::string& directory) {
  const std::filesystem::path path(directory);
  std::error_code error;
  try {
    return ModelConfig::load(path);
  } catch (const FileError& failure) {
    if (std::filesystem::exists(path, error) &&
        (!std::filesystem::is_directory(path, error) ||
         std::filesystem::exists(path / "config.json", error))) {
      throw;
    }
    throw FileError(
        fmt::format("{}; a directory with config.json alone is enough here", failure.what()));
  }
}

Device open_device(const ModelFlags& flags) {
  const std::int64_t ceiling =
      flags.gpu_memory.empty() ? 0 : parse_bytes("--gpu-mem", flags.gpu_memory);
  try {
    return Device::open(flags.device, ceiling);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--device: {}", error.what()));
  }
}

SamplingOptions sampling_options(const SamplingFlags& flags, const SamplingOptions& own) {
  SamplingOptions options = own;
  if (!flags.temperature.empty())
    options.temperature = parse_real("--temp", flags.temperature, 0, 100);
  if (!flags.top_k.empty()) options.top_k = parse_count("--top-k", flags.top_k, 0);
  if (!flags.top_p.empty()) options.top_p = parse_real("--top-p", flags.top_p, 0, 1, true);
  options.seed = parse_seed("--seed", flags.seed);
  return options;
}

void check_rows(const AttentionShape& shape, std::int64_t tokens, const PrefillOptions& options) {
  ContextBuilder(
      shape,
      {.capacity = tokens, .dtype = options.kv_dtype, .memory_budget = options.memory_budget});
}

void check_flags(const ModelFlags& flags) {
  if (!flags.threads.empty()) parse_count("-t", flags.threads, 1, cores());
  if (!flags.gpu_memory.empty()) parse_bytes("--gpu-mem", flags.gpu_memory);
  check_device(flags.device);
}

void check_flags(const RetrievalFlags& flags) {
  try {
    const TopK k = TopK::parse(flags.k);
    if (k.schedule == TopK::Schedule::same) k.resolve(1);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-topk: {}", error.what()));
  }
  if (flags.dense_layers != "all") {
    parse_count("--kv-dense-layers", flags.dense_layers, 0);
  }
  parse_count("--kv-window", flags.window);
  parse_count("--kv-sinks", flags.sinks, 0);
  std::map<std::string, std::string> seen;  // by full spec, as given
  for (const std::string& spec : flags.indices) {
    const auto [earlier, first] = seen.emplace(full_spec(spec), spec);
    if (first) continue;
    throw UsageError(fmt::format(
        "--kv-index: '{}' is given twice{}; expected different indices", spec,
        earlier->second == spec ? "" : fmt::format(", it is the same as '{}'", earlier->second)));
  }
  check_rules(flags);
}

void check_flags(const PrefillFlags& flags) { prefill_options(flags, {}); }

void check_flags(const SamplingFlags& flags) {
  sampling_options(flags);
  if (!flags.predict.empty()) parse_count("-n", flags.predict);
}

void name_index(RetrievalFlags& flags, const AttentionShape& shape) {
  if (!flags.indices.empty()) return;
  flags.indices = {flags.dense_layers == "all" ? "exact"
                                               : IndexSpec::default_for(shape.head_dim).text()};
}

ModelConfig check_model(const ModelFlags& flags, RetrievalFlags& retrieval) {
  ModelConfig config = ModelConfig::load(flags.directory);
  name_index(retrieval, config.attention);
  check_rules(retrieval);
  retrieval_options(retrieval, config.attention.layers, "exact", 1);
  check_indices(retrieval, config, 0);
  return config;
}

void check_indices(const RetrievalFlags& retrieval, const ModelConfig& config, std::int64_t keys) {
  const auto check = [&](std::string_view flag, const std::string& spec) {
    try {
      IndexSpec(spec).check(config.attention.head_dim, keys);
    } catch (const InvalidArgument& error) {
      throw UsageError(fmt::format("{}: {}", flag, error.what()));
    }
  };
  for (const std::string& spec : retrieval.indices) check("--kv-index", spec);
  if (names_index(retrieval.tail)) check("--kv-tail", retrieval.tail);
  check_tail(retrieval.tail);
}

void check_haystack_flag(const std::string& haystack) {
  try {
    check_haystack(haystack);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--haystack: {}{}", error.what(),
                                 did_you_mean(nearest(haystack, haystack_names()))));
  }
}

void check_tail(const std::string& tail) {
  if (!names_index(tail)) return;
  try {
    if (IndexSpec(tail).has_tail()) return;
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-tail: {}", error.what()));
  }
  throw UsageError(fmt::format(
      "--kv-tail: index \"{}\" has no codes of values; expected none, mean, or codes:k=16,v=8 "
      "for example",
      tail));
}

std::string tail_beside(const std::string& tail, const std::string& index) {
  return tail == "codes" && IndexSpec(index).has_code_tail() ? "" : tail;
}

std::string tail_text(const std::string& tail) {
  const bool beside = tail == "codes";  // which may be what an index has
  return names_index(tail) && !beside ? IndexSpec(tail).text() : tail;
}

std::string full_spec(const std::string& spec) {
  try {
    const IndexSpec index(spec);
    index.check_index();
    return index.text();
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-index: {}", error.what()));
  }
}

struct ThreadLimit::Control {
  explicit Control(std::size_t threads)
      : control(oneapi::tbb::global_control::max_allowed_parallelism, threads) {}
  oneapi::tbb::global_control control;
};

ThreadLimit::ThreadLimit(const ModelFlags& flags)
    : control_(flags.threads.empty() ? nullptr
                                     : std::make_unique<Control>(static_cast<std::size_t>(
                                           parse_count("-t", flags.threads, 1, cores())))) {}

ThreadLimit::~ThreadLimit() = default;

std::int64_t ThreadLimit::threads() const {
  const std::size_t allowed = oneapi::tbb::global_control::active_value(
      oneapi::tbb::global_control::max_allowed_parallelism);
  return static_cast<std::int64_t>(allowed);
}

std::string model_name(const ModelFlags& flags) {
  auto path = std::filesystem::weakly_canonical(flags.directory);
  // In the cache of find_model: models--org--name/snapshots/commit.
  const auto snapshots = path.parent_path();
  const std::string cached = snapshots.parent_path().filename().string();
  if (snapshots.filename() == "snapshots" && cached.starts_with("models--")) {
    path = cached.substr(cached.rfind("--") + 2);
  }
  return printable(path.filename().empty() ? path.string() : path.filename().string());
}

std::string version() { return TOPKV_VERSION; }

}  // namespace topkv::cli
