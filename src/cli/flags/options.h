// Flags that several commands share, and what they mean to the library.
//
// CLI11 collects texts, all of them: its own conversions take -1 for a seed and "nan" for a number
// in a range. The *_options functions turn them into the library's options and throw UsageError.
// check_flags throws it for whatever can be known before anything is read or loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

using Json = nlohmann::ordered_json;

struct ModelFlags {
  std::string directory;
  std::string threads;  ///< empty: all cores
  std::string device = "auto";
  std::string gpu_memory;  ///< empty: nine tenths of what is free
  std::string weights = "stored";
};

struct RetrievalFlags {
  std::vector<std::string> indices;  ///< empty: name_index() has to name one
  std::string tail;                  ///< empty: what the index has
  std::string k = "64";
  std::string mass = "none";
  std::string error = "none";
  std::string window = "1024";
  std::string sinks = "4";
  std::string select = "query_head";
  bool host_search = false;
  std::string dense_layers = "0";
};

/// What --kv-dtype may be: of keys and values, or of keys / of values.
inline const std::vector<std::string> kv_dtypes = {"bf16", "q8", "q4", "q8/q4", "f16", "f32"};

struct PrefillFlags {
  std::string mode;
  std::string window = "1024";
  std::string chunk = "auto";
  std::string dtype = "bf16";
  std::string memory;  ///< empty: what the machine has free
};

struct SamplingFlags {
  std::string predict;  ///< empty: the command's default
  // Empty: the model's own.
  std::string temperature = "0";
  std::string top_p = "1";
  std::string top_k = "0";
  std::string seed = "42";
};

void add_flags(CLI::App& command, ModelFlags& flags);
void add_flags(CLI::App& command, RetrievalFlags& flags);
void add_flags(CLI::App& command, PrefillFlags& flags);
void add_flags(CLI::App& command, SamplingFlags& flags);

/// For a model of so many layers; `index` is one of flags.indices and capacity the session's own
/// tokens. Checks everything but the index spec.
RetrievalOptions retrieval_options(const RetrievalFlags& flags, std::int64_t layers,
                                   const std::string& index, std::int64_t capacity);
/// The rules of which rows are enough.
std::optional<double> mass_of(const RetrievalFlags& flags);
std::optional<double> error_of(const RetrievalFlags& flags);
/// Whether the prefill must keep queries for it; of what is no index: false.
bool learns_queries(const std::string& index);

PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval);
/// own: the model's, for flags that are empty.
SamplingOptions sampling_options(const SamplingFlags& flags, const SamplingOptions& own = {});

/// Throws OutOfMemory when the rows of so many tokens, of context and session together, would not
/// fit into --mem or the machine. Reserving is how the library tells; nothing is written.
void check_rows(const AttentionShape& shape, std::int64_t tokens, const PrefillOptions& options);

/// Throw UsageError for what is wrong with the flags whatever the model.
void check_flags(const ModelFlags& flags);
void check_flags(const RetrievalFlags& flags);
void check_flags(const PrefillFlags& flags);
void check_flags(const SamplingFlags& flags);

/// Where no index is named: the default for these heads; exact, which costs nothing, where every
/// layer is dense.
void name_index(RetrievalFlags& flags, const AttentionShape& shape);

/// Of a command that takes its model with -m or without, and needs no weights: puts where it is
/// into `directory`. Throws UsageError when there is none, or both, and what find_model throws.
void take_model(std::string& directory, const std::string& argument, const char* command);

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
