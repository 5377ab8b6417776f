#include "src/cli/flags/options.h"

#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/eval/tasks/haystack.h"
#include "topkv/error.h"
#include "topkv/find_model.h"
#include "topkv/key_index.h"

namespace topkv::cli {

namespace {

Guarantee parse_guarantee(const std::string& text) {
  const std::size_t comma = text.find(',');
  try {
    if (comma != std::string::npos) {
      const Guarantee of{parse_real("", text.substr(0, comma), 0, 1, true),
                         parse_real("", text.substr(comma + 1), 0, 1, true)};
      if (of.epsilon < 1 && of.delta < 1) return of;
    }
  } catch (const UsageError&) {  // whose message is about one number
  }
  throw UsageError(fmt::format(
      "--kv-guarantee: expected two numbers above 0 and below 1, the error and the probability of "
      "a larger one, such as 0.1,0.05, or none; found '{}'",
      text));
}

void check_guarantee(const RetrievalFlags& flags) {
  if (!flags.guarantee) return;
  parse_guarantee(*flags.guarantee);
  const bool tail = !flags.tail.empty() && flags.tail != "none";
  if (!flags.mass && !flags.error && !tail) return;
  throw UsageError(fmt::format(
      "--kv-guarantee does not go with {}: a sample stands for the rows that are not found, and is "
      "as large as the guarantee needs; leave one of them out",
      flags.mass    ? "--kv-mass"
      : flags.error ? "--kv-error"
                    : "--kv-tail " + flags.tail));
}

/// A rule needs a tail with each of the indices.
void check_rules(const RetrievalFlags& flags) {
  if (!flags.mass && !flags.error) return;
  for (const std::string& spec : flags.indices) {
    if (flags.tail.empty() ? IndexSpec(spec).has_tail() : flags.tail != "none") continue;
    throw UsageError(fmt::format(
        "{}: expected a tail, which estimates the rows that are not found; {}; give --kv-tail "
        "codes for example",
        flags.mass ? "--kv-mass" : "--kv-error",
        flags.tail.empty() ? fmt::format("index '{}' has none", spec) : "found --kv-tail none"));
  }
}

/// With a trained indexer, which says itself what is enough.
void check_indexer(const RetrievalFlags& flags) {
  if (flags.indexer.empty()) return;
  const bool tail = !flags.tail.empty() && flags.tail != "none";
  const char* const other = flags.mass                ? "--kv-mass"
                            : flags.error             ? "--kv-error"
                            : flags.guarantee         ? "--kv-guarantee"
                            : tail                    ? "--kv-tail"
                            : flags.gpu_rows          ? "--kv-gpu-rows"
                            : flags.dense_layers != 0 ? "--kv-dense-layers"
                                                      : nullptr;
  if (other != nullptr) {
    throw UsageError(fmt::format(
        "{} does not go with --indexer: layers with an indexer attend the --kv-topk tokens that it "
        "chooses, and the last --kv-window tokens; leave one of them out",
        other));
  }
  if (TopK::parse(flags.k).schedule == TopK::Schedule::same) return;
  throw UsageError(fmt::format(
      "--kv-topk: expected one number with --indexer, which all layers share; found '{}'",
      flags.k));
}

bool names_index(const std::string& tail) { return !tail.empty() && tail != "none"; }

}  // namespace

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
  options.mass = flags.mass;
  options.error = flags.error;
  if (flags.guarantee) options.guarantee = parse_guarantee(*flags.guarantee);
  options.select_by = flags.select == "group" ? SelectBy::group : SelectBy::query_head;
  options.host_search = flags.host_search;
  options.device_rows = flags.gpu_rows.value_or(0);
  options.dense_layers = flags.dense_layers.value_or(layers);
  if (options.dense_layers > layers) {
    throw UsageError(fmt::format(
        "--kv-dense-layers: expected 0 to {}, the layers of the model, or all; found {}", layers,
        options.dense_layers));
  }
  options.window = flags.window;
  options.sinks = flags.sinks;
  if (!flags.indexer.empty()) {
    const std::int64_t most = every_index_block - 1;
    options.indexer_local_blocks = std::min(flags.window, most);
    options.indexer_top =
        std::min(std::min(flags.window, most) + std::min(options.k.value, most), most);
  }
  options.capacity = capacity;
  return options;
}

void check_flags(const DraftFlags& flags) {
  if (flags.model.empty()) {
    if (flags.window)
      throw UsageError("--draft-window: there is no draft model; add --draft-model");
  } else if (flags.mode == name_of(Draft::none)) {
    throw UsageError("--draft-model does not go with --draft none; leave one of them out");
  }
}

DraftModelOptions draft_model_options(const DraftFlags& flags) {
  DraftModelOptions options;
  if (flags.window) options.window = *flags.window;
  return options;
}

bool learns_queries(const std::string& index) {
  try {
    return IndexSpec(index).learns_queries();
  } catch (const InvalidArgument&) {  // told where indices are checked
    return false;
  }
}

PrefillAttention prefill_attention(const PrefillFlags& flags, std::int64_t sinks) {
  PrefillAttention attention{.mode = parse_prefill(flags.mode),
                             .window = flags.window,
                             .sinks = sinks,
                             .keys = flags.keys,
                             .mass = flags.mass.value_or(1)};
  attention.least_keys = flags.least_keys.value_or(std::min(attention.least_keys, flags.keys));
  if (attention.least_keys > flags.keys) {
    throw UsageError(fmt::format(
        "--prefill-least: expected at most the {} of --prefill-keys, found {}; give less, or raise "
        "--prefill-keys",
        flags.keys, attention.least_keys));
  }
  return attention;
}

std::optional<PrefillAttention> turn_attention(const PrefillFlags& flags, std::int64_t sinks) {
  const PrefillAttention attention = prefill_attention(flags, sinks);
  if (attention.mode == Prefill::window) return {};
  return attention;
}

PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval) {
  PrefillOptions options;
  options.attention = prefill_attention(flags, retrieval.sinks);
  options.chunk = flags.chunk.value_or(0);
  options.kv_dtype = KvDType::parse(flags.dtype);
  options.memory_budget = flags.memory.value_or(0);
  options.keep_queries = std::ranges::any_of(retrieval.indices, learns_queries);
  if (!retrieval.indexer.empty()) options.indexer_top = every_index_block;
  return options;
}

void resolve_model_flag(std::string& directory, const std::string& argument, const char* command) {
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
  if (flags.gpu_memory && flags.device == "cpu")
    throw UsageError("--gpu-mem does not go with --device cpu; give one of them");
  try {
    const Device device = Device::open(flags.device, flags.gpu_memory.value_or(0));
    if (!flags.gpu_memory || device.is_cuda()) return device;
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--device: {}", error.what()));
  }
  try {
    return Device::open("cuda", *flags.gpu_memory);  // its error says why there is no GPU
  } catch (const Error& error) {
    throw Unsupported(
        fmt::format("--gpu-mem: {}; without the flag topkv computes on the CPU", error.what()));
  }
}

SamplingOptions sampling_options(const SamplingFlags& flags, const SamplingOptions& own) {
  SamplingOptions options = own;
  options.temperature = flags.temperature.value_or(own.temperature);
  options.top_k = flags.top_k.value_or(own.top_k);
  options.top_p = flags.top_p.value_or(own.top_p);
  options.seed = flags.seed;
  return options;
}

void check_rows(const AttentionShape& shape, std::int64_t tokens, const PrefillOptions& options) {
  ContextBuilder(
      shape,
      {.capacity = tokens, .dtype = options.kv_dtype, .memory_budget = options.memory_budget});
}

void check_flags(const RetrievalFlags& flags) {
  try {
    const TopK k = TopK::parse(flags.k);
    if (k.schedule == TopK::Schedule::same) k.resolve(1);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--kv-topk: {}", error.what()));
  }
  std::map<std::string, std::string> seen;  // by full spec, as given
  for (const std::string& spec : flags.indices) {
    const auto [earlier, first] = seen.emplace(full_spec(spec), spec);
    if (first) continue;
    throw UsageError(fmt::format(
        "--kv-index: '{}' is given twice{}; expected different indices", spec,
        earlier->second == spec ? "" : fmt::format(", it is the same as '{}'", earlier->second)));
  }
  check_indexer(flags);
  check_guarantee(flags);
  check_rules(flags);
  if (flags.gpu_rows && (flags.mass || flags.error || flags.host_search)) {
    throw UsageError(fmt::format(
        "--kv-gpu-rows does not go with {}: the host attends the rows then; leave one of them out",
        flags.mass    ? "--kv-mass"
        : flags.error ? "--kv-error"
                      : "--kv-host-search"));
  }
}

void check_flags(const RetrievalFlags& retrieval, const PrefillFlags& prefill) {
  check_flags(retrieval);
  prefill_attention(prefill, retrieval.sinks);
}

void name_index(RetrievalFlags& flags, const AttentionShape& shape) {
  if (!flags.indices.empty()) return;
  flags.indices = {!flags.dense_layers || !flags.indexer.empty()
                       ? "exact"
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
    : control_(flags.threads ? std::make_unique<Control>(static_cast<std::size_t>(*flags.threads))
                             : nullptr) {}

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
