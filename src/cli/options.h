// Flags that several commands share, and what they mean to the library.
//
// CLI11 collects texts; the *_options functions turn them into the library's options and throw
// UsageError (or the library's InvalidArgument, where the library owns the syntax).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace topkv::cli {

using Json = nlohmann::ordered_json;

struct ModelFlags {
  std::string directory;
  std::int64_t threads = 0;  ///< 0: all cores
  std::string device = "auto";
  std::string gpu_memory;  ///< empty: nine tenths of what is free
};

struct RetrievalFlags {
  std::vector<std::string> indices = {"exact"};
  std::string k = "64";
  std::string window = "1024";
  std::string sinks = "4";
  std::string select = "query_head";
  std::string dense_layers = "0";
  std::string attend_on = "auto";
};

struct PrefillFlags {
  std::string mode;
  std::string window = "1024";
  std::string chunk = "auto";
  std::string dtype = "bf16";
  std::string memory;  ///< empty: what the machine has free
};

struct SamplingFlags {
  std::string predict;  ///< empty: the command's default
  double temperature = 0;
  double top_p = 1;
  std::string top_k = "0";
  std::uint64_t seed = 42;
};

void add_flags(CLI::App& command, ModelFlags& flags);
void add_flags(CLI::App& command, RetrievalFlags& flags);
void add_flags(CLI::App& command, PrefillFlags& flags);
void add_flags(CLI::App& command, SamplingFlags& flags);

/// For a model of so many layers; `index` is one of flags.indices and capacity the session's own
/// tokens. Checks everything but the index spec.
RetrievalOptions retrieval_options(const RetrievalFlags& flags, std::int64_t layers,
                                   const std::string& index, std::int64_t capacity);
PrefillOptions prefill_options(const PrefillFlags& flags, const RetrievalFlags& retrieval);
SamplingOptions sampling_options(const SamplingFlags& flags);

/// Throws for what is wrong with the flags whatever the model.
void check_flags(const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                 const SamplingFlags& sampling);

/// Tokens that a text begins with according to the tokenizer's post-processor: a BOS for models
/// whose tokenizer adds one, nothing for others (a bos_token_id in config.json does not tell: Qwen
/// names one that its texts never begin with).
std::vector<Token> beginning_tokens(const Tokenizer& tokenizer);

/// The device that the flags name. Throws UsageError, and what Device::open throws.
Device open_device(const ModelFlags& flags);

/// Limits every parallel loop to so many threads while it lives; 0: all cores.
class ThreadLimit {
 public:
  explicit ThreadLimit(std::int64_t threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;  // a scope
  ThreadLimit& operator=(const ThreadLimit&) = delete;
  std::int64_t threads() const;

 private:
  struct Control;
  std::unique_ptr<Control> control_;
};

/// Most memory that the process has held so far.
std::int64_t peak_memory_bytes();

/// The version of topkv.
std::string version();

}  // namespace topkv::cli
