// Flags that several commands share, and what they mean to the library.
//
// The table of help.h has their names and defaults; visit_flags says which member is which flag, in
// the order of run.json. A binder (bind.h) fills the members.
//
// The *_options functions turn flags into the library's options. They throw UsageError, and
// check_flags throws it for what can be known before anything is read or loaded.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "src/cli/terminal/parse_numbers.h"
#include "topkv/draft_model.h"
#include "topkv/model.h"

namespace topkv::cli {

using Json = nlohmann::ordered_json;

struct ModelFlags {
  std::string directory;
  std::string weights;
  std::optional<std::int64_t> gpu_memory;  ///< bytes; not set: nine tenths of what is free
  std::optional<std::int64_t> threads;     ///< not set: all cores
  std::string device;
};

struct RetrievalFlags {
  std::string indexer;               ///< a file with a trained indexer; empty: none
  std::vector<std::string> indices;  ///< empty: name_index() has to name one
  std::string k;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::string select;
  bool host_search = false;
  std::optional<std::int64_t> gpu_rows;      ///< bytes; not set: none
  std::optional<std::int64_t> dense_layers;  ///< not set: all
  std::string tail;                          ///< empty: what the index has
  // The rules of which rows are enough.
  std::optional<double> mass;
  std::optional<double> error;
  std::optional<std::string> guarantee;  ///< "0.1,0.05"
};

struct PrefillFlags {
  std::string dtype;
  std::string mode;
  std::int64_t window = 0;
  std::int64_t keys = 0;
  std::optional<std::int64_t> least_keys;  ///< not set: the library's, up to `keys`
  std::optional<double> mass;              ///< not set: all `keys`
  std::optional<std::int64_t> chunk;       ///< not set: what suits the device
  std::optional<std::int64_t> memory;      ///< bytes; not set: what the machine has free
};

struct SamplingFlags {
  // Not set: the model's own.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::uint64_t seed = 0;
};

struct DraftFlags {
  std::string mode;                    ///< of name_of(Draft)
  std::string model;                   ///< empty: no model drafts
  std::optional<std::int64_t> window;  ///< not set: the library's
};

void visit_flags(DraftFlags& flags, auto& visit) {
  visit("--draft", flags.mode);
  visit("--draft-model", flags.model);
  visit("--draft-window", flags.window);
}

/// Throws UsageError for flags that do not go together.
void check_flags(const DraftFlags& flags);
DraftModelOptions draft_model_options(const DraftFlags& flags);

void visit_flags(ModelFlags& flags, auto& visit) {
  visit("--model", flags.directory);
  visit("--weights", flags.weights);
  visit("--gpu-mem", flags.gpu_memory);
  visit("--threads", flags.threads);
  visit("--device", flags.device);
}

void visit_flags(RetrievalFlags& flags, auto& visit) {
  visit("--kv-index", flags.indices);
  visit("--kv-topk", flags.k);
  visit("--kv-window", flags.window);
  visit("--kv-sinks", flags.sinks);
  visit("--kv-select", flags.select);
  visit("--kv-host-search", flags.host_search);
  visit("--kv-gpu-rows", flags.gpu_rows);
  visit("--kv-dense-layers", flags.dense_layers);
  visit("--kv-tail", flags.tail);
  visit("--kv-mass", flags.mass);
  visit("--kv-error", flags.error);
  visit("--kv-guarantee", flags.guarantee);
}

void visit_flags(PrefillFlags& flags, auto& visit) {
  visit("--kv-dtype", flags.dtype);
  visit("--prefill", flags.mode);
  visit("--prefill-window", flags.window);
  visit("--prefill-keys", flags.keys);
  visit("--prefill-least", flags.least_keys);
  visit("--prefill-mass", flags.mass);
  visit("--chunk", flags.chunk);
  visit("--mem", flags.memory);
}

void visit_flags(SamplingFlags& flags, auto& visit) {
  visit("--temp", flags.temperature);
  visit("--top-p", flags.top_p);
  visit("--top-k", flags.top_k);
  visit("--seed", flags.seed);
}

/// For a model of so many layers; `index` is one of flags.indices and capacity the session's own
/// tokens. Checks everything but the index spec.
RetrievalOptions retrieval_options(const RetrievalFlags& flags, std::int64_t layers,
                                   const std::string& index, std::int64_t capacity);
/// Whether the prefill must keep queries for it; of what is no index: false.
bool learns_queries(const std::string& index);

/// Throws UsageError when a value of a flag is given twice.
template <class T>
void check_differ(const char* flag, const std::vector<T>& values) {
  std::set<T> seen;
  for (const T& value : values) {
    if (seen.insert(value).second) continue;
    throw UsageError(fmt::format("{}: {} is given twice; expected different ones", flag, value));
  }
}

/// Throws UsageError when --prefill-least is above --prefill-keys.
PrefillAttention prefill_attention(const PrefillFlags& flags, std::int64_t sinks);
/// How sessions read turns (RetrievalOptions::turns): in the mode of the flags. Not set for
/// "window", in which a turn would not meet the context. Throws UsageError as prefill_attention
/// does.
std::optional<PrefillAttention> turn_attention(const PrefillFlags& flags, std::int64_t sinks);
/// Throws UsageError as prefill_attention does.
PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval);
/// own: the model's, for flags that are not set.
SamplingOptions sampling_options(const SamplingFlags& flags, const SamplingOptions& own = {});

/// Throws OutOfMemory when the rows of so many tokens, of context and session together, would not
/// fit into --mem or the machine. Reserving is how the library tells; nothing is written.
void check_rows(const AttentionShape& shape, std::int64_t tokens, const PrefillOptions& options);

/// Throws UsageError for what is wrong with the flags whatever the model.
void check_flags(const RetrievalFlags& flags);
/// Throws UsageError for what is wrong with the flags of retrieval and prefill whatever the model.
void check_flags(const RetrievalFlags& retrieval, const PrefillFlags& prefill);

/// Where no index is named: the default for these heads; exact, which costs nothing, where every
/// layer is dense.
void name_index(RetrievalFlags& flags, const AttentionShape& shape);

/// Of a command that takes its model with -m or without, and needs no weights: puts where it is
/// into `directory`. Throws UsageError when there is none, or both, and what find_model throws.
void resolve_model_flag(std::string& directory, const std::string& argument, const char* command);

/// ModelConfig::load for a command that needs no weights, which it says where there is no model.
ModelConfig described_model(const std::string& directory);

/// What is wrong with them for this model; names an index. Reads config.json alone, throws what
/// ModelConfig::load throws too.
ModelConfig check_model(const ModelFlags& flags, RetrievalFlags& retrieval);

/// Throws UsageError when an index cannot be built over so many keys of this model.
void check_indices(const RetrievalFlags& retrieval, const ModelConfig& config, std::int64_t keys);

/// Throws UsageError for a --haystack that is neither a name nor a directory, and FileError for a
/// directory without texts.
void check_haystack_flag(const std::string& haystack);

/// Throws UsageError unless --kv-tail is "", "none", "mean" or an index that codes values.
void check_tail(const std::string& tail);

/// --kv-tail beside an index: plain "codes" is what the index has, if it has one.
std::string tail_beside(const std::string& tail, const std::string& index);

/// --kv-tail in one spelling: "", "none", "codes" or a full spec.
std::string tail_text(const std::string& tail);

/// How an index is spelled with all that its spec leaves out, so that two spellings compare.
std::string full_spec(const std::string& spec);

/// The device that the flags name. Throws UsageError, or Unsupported where there is none.
Device open_device(const ModelFlags& flags);

/// Limits every parallel loop to the threads asked for while it lives.
class ThreadLimit {
 public:
  explicit ThreadLimit(const ModelFlags& flags);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;  // a scope
  ThreadLimit& operator=(const ThreadLimit&) = delete;
  std::int64_t threads() const;

 private:
  struct Control;
  std::unique_ptr<Control> control_;
};

/// The model as people name it: by its directory, or its name in Hugging Face's cache folder.
std::string model_name(const ModelFlags& flags);

/// The version of topkv.
std::string version();

}  // namespace topkv::cli
