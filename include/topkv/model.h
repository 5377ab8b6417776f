// The model runner: a checkpoint in Hugging Face layout, its tokenizer, prefill and generation.
//
// Families: Llama 2/3.x, Mistral, Qwen2/2.5, Qwen3 (dense decoders with RMSNorm, RoPE, GQA and a
// gated MLP); see ModelConfig for what may differ between them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/session.h"
#include "topkv/tokenizer.h"

namespace topkv {

/// How rotary frequencies are stretched beyond the trained context.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3 only
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position = 8192;  ///< what is stretched; linear has it too
};

/// config.json, reduced to what changes the forward pass. All sizes checked.
struct ModelConfig {
  std::string model_type;  ///< "llama", "mistral", "qwen2", "qwen3"
  AttentionShape attention;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position = 0;  ///< max_position_embeddings
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm over head_dim on q and k before RoPE (Qwen3)
  bool tied_embeddings = false;
  Token bos = -1;               ///< -1: none
  std::vector<Token> eos = {};  ///< any of them ends generation
  /// What the file says that topkv, like transformers, does not do: one line each.
  std::vector<std::string> warnings = {};

  /// Positions that the model was made for: max_position; with a linear scaling, which leaves that
  /// as it was, what it is stretched to.
  std::int64_t reach() const;
  /// When that many tokens go beyond the reach: one line that says so, with both numbers. Else
  /// empty.
  std::string beyond_reach(std::int64_t tokens) const;
  /// Bytes of K and V of one token over all layers.
  std::int64_t kv_bytes_per_token(KvDType dtype) const;

  /// Reads config.json (and generation_config.json, when there, for the end tokens) of a model
  /// directory. Accepts rope_theta/rope_scaling and rope_parameters.
  /// Keys that the family's network does not read are left aside, as transformers does, and told in
  /// warnings unless they are known to change nothing.
  /// Throws FileError, or Unsupported naming the key and the value.
  static ModelConfig load(const std::filesystem::path& directory);
};

struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy
  std::int64_t top_k = 0;  ///< 0: off
  double top_p = 1;
  std::uint64_t seed = 0;
};

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplingOptions sampling = {};
};

struct PrefillOptions {
  PrefillAttention attention = {};
  /// Tokens per step; bounds the activations. Does not change results beyond rounding. 0: what
  /// suits the device and its memory.
  std::int64_t chunk = 0;
  KvDType kv_dtype = {};           ///< of the rows; a CUDA device takes bf16, q8 and q4
  std::int64_t memory_budget = 0;  ///< bytes for the rows; 0: what the machine has free
  /// Specs of indices that the context shall have. On a CUDA device those that grow key by key
  /// (hnsw) are built by the host's cores while the device computes; others at the end.
  std::vector<std::string> indices = {};
};

/// Where the time of a forward pass went, in seconds summed over calls.
struct ForwardTimes {
  double matmul = 0;
  double attention = 0;  ///< dense, window and retrieved rows, and storing rows
  double search = 0;     ///< index searches
  double other = 0;      ///< norms, RoPE, activations, embedding
  double indexing = 0;   ///< after a prefill's last token, waiting for its indices
  /// Of the forward pass: without indexing.
  double total() const { return matmul + attention + search + other; }
  ForwardTimes& operator+=(const ForwardTimes& more) { return add(more, 1); }
  ForwardTimes operator-(const ForwardTimes& less) const {
    return ForwardTimes(*this).add(less, -1);
  }

 private:
  ForwardTimes& add(const ForwardTimes& more, double sign) {
    matmul += sign * more.matmul;
    attention += sign * more.attention;
    search += sign * more.search;
    indexing += sign * more.indexing;
    other += sign * more.other;
    return *this;
  }
};

/// Where device memory would go: for a prefill and a session of it, before any work.
struct DevicePlan {
  std::vector<MemoryItem> items;  ///< in the order of a run; empty for the host
  std::int64_t peak = 0;          ///< the most that is taken at a time
  std::int64_t ceiling = 0;
  std::int64_t chunk = 0;          ///< tokens of a prefill chunk: the largest that fits
  std::int64_t weights_bytes = 0;  ///< of the model's weights as the checkpoint holds them
  bool fits() const { return peak <= ceiling; }
};

/// Told, in one line, what does not stop the work but may spoil its result. From the thread that
/// does the work; may throw, which ends it.
using WarningFn = std::function<void(const std::string& warning)>;

/// Attention of one layer: fills step.out, in the memory of the model's device.
using AttendFn = std::function<void(const AttentionStep& step)>;

/// Called with each generated token; return false to stop.
using TokenFn = std::function<bool(Token)>;

struct GenerateResult {
  std::vector<Token> tokens;  ///< generated, without the end token
  bool ended = false;         ///< the model gave an end token
  std::int64_t steps = 0;     ///< tokens fed after the prompt: what decode_seconds were spent on
  double prompt_seconds = 0;
  double decode_seconds = 0;
  ForwardTimes times;
};

/// A loaded checkpoint. On the host weights stay in the checkpoint's dtype, memory-mapped; on a
/// CUDA device they are copied to it in bf16. Const members are safe from many threads, each with
/// its own session.
class Model {
 public:
  /// Loads config.json, tokenizer.json and the safetensors of a directory. Without tokenizer.json
  /// the model takes token ids only. Throws FileError, Unsupported or OutOfMemory.
  /// on_warning is told the warnings of the configuration, of an output layer in the file that
  /// differs from the embedding that config.json ties it to (it is used, as transformers does),
  /// and, once in the model's life, when tokens go beyond the model's reach.
  static Model load(const std::filesystem::path& directory, const Device& device = {},
                    WarningFn on_warning = {});

  /// What a prefill with these options and a session of the context would take of the device's
  /// memory. Checks the weights as load does, by their headers, and throws as it does, but not for
  /// a plan that does not fit.
  static DevicePlan plan(const std::filesystem::path& directory, const Device& device,
                         const PrefillOptions& prefill, const RetrievalOptions& retrieval);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// tied_embeddings is as the weights are used; see load.
  const ModelConfig& config() const;
  const Device& device() const;
  /// Throws FileError when the directory has no tokenizer.json.
  const Tokenizer& tokenizer() const;

  /// Tells on_warning when that many tokens, context and all, go beyond the model's reach, unless
  /// it was told so before. prefill, generate and logits do this by themselves as they get there.
  void check_reach(std::int64_t tokens) const;

  /// Runs the tokens through the network into a new context. times, when given, is added to.
  /// On a CUDA device the rows of the context are page-locked, so that copies run at full speed.
  /// Throws InvalidArgument for no tokens or ids outside the vocabulary, OutOfMemory before any
  /// work when the rows do not fit.
  std::shared_ptr<const Context> prefill(std::span<const Token> tokens,
                                         const PrefillOptions& options = {},
                                         const ProgressFn& progress = {},
                                         ForwardTimes* times = nullptr) const;

  /// Feeds the prompt to the session, then generates. The session keeps both, except
  /// the last token chosen (the end token, or where max_tokens or on_token ended it). The forward
  /// pass runs at positions session.tokens() and on.
  /// Throws InvalidArgument for an empty prompt, and a session on another device or over a context
  /// of another shape. Whatever is thrown, by on_token too, the session is then as it was before
  /// the call.
  GenerateResult generate(Session& session, std::span<const Token> prompt,
                          const GenerateOptions& options = {}, const TokenFn& on_token = {}) const;

  /// Logits [tokens, vocab_size] of a dense forward pass over the tokens; for tests and scoring.
  std::vector<float> logits(std::span<const Token> tokens) const;
  /// Feeds tokens to a session, as generate takes them, and gives their logits
  /// [tokens, vocab_size]. Whatever is thrown, the session is then as it was before the call.
  std::vector<float> logits(Session& session, std::span<const Token> tokens) const;
  /// Logits [tokens, vocab_size] of tokens at positions first and on, whose attention the caller
  /// computes: at most 256 tokens at a time, layer by layer.
  std::vector<float> logits(std::span<const Token> tokens, std::int64_t first,
                            const AttendFn& attend) const;

  struct Impl;  ///< for topkv itself

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
