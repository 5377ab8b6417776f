// The model runner: a checkpoint in Hugging Face layout or a GGUF file, its tokenizer, prefill and
// generation.
//
// Families, by model_type: llama, mistral, qwen2, qwen3, phi3, glm, glm4, olmo2, smollm3, gemma2,
// gemma3_text (dense decoders with RMSNorm, RoPE, GQA and a gated MLP), and mixtral, qwen3_moe,
// gpt_oss (with a mixture of experts in place of the MLP); see ModelConfig for what may differ
// between them, and docs/reference/models.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/generate.h"
#include "topkv/progress.h"
#include "topkv/session.h"
#include "topkv/tokenizer.h"
#include "topkv/warning.h"

namespace topkv {

/// How rotary frequencies are stretched beyond the length that a model was first trained with, as
/// transformers 5 computes it. d: ModelConfig::rotary_dim; pair i turns by position * frequency(i),
/// which without scaling is theta^(-2i/d).
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,    ///< all divided by factor (position interpolation; Chen et al. 2023, eq. 4)
    llama3,    ///< long wavelengths divided by factor, short ones kept (Llama 3.1)
    dynamic,   ///< theta grown to `theta_factor` times itself (NTK-aware; Peng et al. 2023,
               ///< sec. 3.1)
    yarn,      ///< by the turns a pair makes in the original length (Peng et al. 2023, sec. 3.2)
    longrope,  ///< divided pair by pair by `pair_factors` (Ding et al. 2024, eq. 3)
    /// Divided pair by pair by `pair_factors`, a GGUF file's tensor rope_freqs.weight: what llama3
    /// comes to for the files of Llama 3.1 and later.
    frequency_factors,
  };
  Kind kind = Kind::none;
  double factor = 1;
  double original_max_position = 8192;  ///< the length that is stretched
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // dynamic
  double theta_factor = 1;  ///< for the length that is meant; see ModelConfig::load
  // yarn
  double beta_fast = 32;  ///< turns from which a pair is kept
  double beta_slow = 1;   ///< turns up to which a pair is divided by factor
  bool truncate = true;   ///< the borders between are rounded outwards to whole pairs
  // yarn and longrope
  double attention_factor = 1;  ///< on cos and sin, so that scores grow by its square
  // longrope and frequency_factors
  std::vector<double> pair_factors = {};  ///< [d / 2]; longrope: the short or the long ones
};

/// Which rotary angles a layer's queries and keys are turned by.
enum class LayerRope : std::uint8_t {
  model,    ///< rope_theta and rope_scaling
  sliding,  ///< sliding_rope_theta, not scaled (windowed layers of Gemma 3)
  none,     ///< none: the layer does not know positions (SmolLM3)
};

/// Dual chunk attention (An et al. 2024, arXiv 2402.17463), as Qwen2.5-1M's and Qwen3-2507's files
/// ask for it and vLLM computes it: positions are counted within chunks, so that no query is
/// further from a key than chunk_size, and AttentionShape::chunk_len is chunk_len().
struct DualChunk {
  std::int64_t chunk_size = 0;  ///< furthest position of a query; 0: the model has none of this
  std::int64_t local_size = 0;  ///< below chunk_size: how near the chunk before is seen as it is
  /// Above 0: in texts of more tokens n, scores grow by 0.1 ln(n / this) + 1.
  std::int64_t original_max_position = 0;

  std::int64_t chunk_len() const { return chunk_size - local_size; }
};

/// A mixture of experts in place of an MLP (Shazeer et al. 2017, arXiv 1701.06538): a router scores
/// all experts, each token goes through those that score highest, and what they give is summed with
/// weights.
struct ExpertMixture {
  std::int64_t experts = 0;            ///< 0: the model has none
  std::int64_t per_token = 0;          ///< from 1 to experts
  std::int64_t intermediate_size = 0;  ///< of each
  /// The weights are the chosen ones' shares of a softmax over all experts, which add up to less
  /// than 1; else a softmax over those that are chosen.
  bool softmax_over_all = false;
  bool biases = false;            ///< router and experts have some
  std::vector<bool> layers = {};  ///< which have one, the others an MLP; empty: all of them
  bool in(std::int64_t layer) const {
    return experts > 0 && (layers.empty() || layers[static_cast<std::size_t>(layer)]);
  }
};

/// config.json, reduced to what changes the forward pass. All sizes checked.
struct ModelConfig {
  enum class Activation : std::uint8_t {
    silu,
    gelu_tanh,
    clamped_silu,  ///< min(g, c) sigmoid(1.702 min(g, c)) (clamp(u, -c, c) + 1), c: swiglu_limit
  };

  std::string model_type;  ///< "llama", "qwen3", …: see the families above
  AttentionShape attention;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  ///< of an MLP
  ExpertMixture mixture;
  std::int64_t vocab_size = 0;
  std::int64_t max_position = 0;  ///< max_position_embeddings
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  std::int64_t rotary_dim = 0;    ///< the first so many elements of a head are turned; even
  bool rope_interleaved = false;  ///< pairs are elements (2i, 2i + 1), not (i, i + rotary_dim / 2)
  DualChunk dual_chunk;
  double sliding_rope_theta = 0;           ///< LayerRope::sliding; 0: no layer has it
  std::vector<LayerRope> layer_rope = {};  ///< per layer; empty: every layer has the model's
  /// Most tokens that contexts and sessions are meant to hold: what load was told, else reach().
  std::int64_t length = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool norm_inputs = true;     ///< RMSNorm of what attention and MLP read
  bool norm_outputs = false;   ///< RMSNorm of what they give, before it is added to the residual
  bool qk_norm = false;        ///< RMSNorm on q and k before RoPE, over each head (Qwen3)
  bool qk_norm_whole = false;  ///< that norm is over all heads of a token at once (OLMo 2)
  Activation activation = Activation::silu;
  double swiglu_limit = 0;  ///< of Activation::clamped_silu
  /// Each query head has one more score under its softmax, learned, whose row of V is 0 (gpt-oss;
  /// Xiao et al. 2023, arXiv 2309.17453, section 3.3).
  bool attention_sinks = false;
  double embedding_scale = 1;  ///< on the embedding's rows as they enter the network
  double final_softcap = 0;    ///< logits x become c tanh(x / c) (Gemma 2); 0: as they are
  bool tied_embeddings = false;
  Token bos = -1;               ///< -1: none
  std::vector<Token> eos = {};  ///< any of them ends generation
  /// How the model's makers would have it sampled: generation_config.json, read as transformers
  /// does; greedy without do_sample. For callers that are not told otherwise.
  SamplingOptions sampling = {};
  /// What that file asks for and topkv's sampler does not have (typical_p, num_beams, …), on one
  /// line for those who sample so; empty: nothing.
  std::string sampling_warning = {};
  /// What the file says that topkv, like transformers, does not do: one line each.
  std::vector<std::string> warnings = {};

  /// Positions that the model was made for: max_position, or what a scaling stretches that leaves
  /// it as it was (linear, dynamic, yarn). With LongRoPE's short factors: the original length.
  std::int64_t reach() const;
  /// When that many tokens go beyond the reach: one line that says so, with both numbers. Else
  /// empty.
  std::string beyond_reach(std::int64_t tokens) const;
  /// Bytes of K and V of one token over all layers.
  std::int64_t kv_bytes_per_token(KvDType dtype) const;
  LayerRope rope_of(std::int64_t layer) const {
    return layer_rope.empty() ? LayerRope::model : layer_rope[static_cast<std::size_t>(layer)];
  }

  /// Reads config.json (and generation_config.json, when there, for the end tokens and sampling) of
  /// a model directory, or the metadata of a GGUF file. Accepts rope_theta/rope_scaling and
  /// rope_parameters.
  /// length: the most tokens that contexts and sessions of this model are meant to hold; 0: all of
  /// the model's reach. LongRoPE and dynamic NTK turn keys otherwise for long texts than for short
  /// ones, and rows that are stored cannot be turned again: so it is decided here, once.
  /// LongRoPE takes its long factors when length is above the original one, else the short ones;
  /// dynamic NTK takes the theta of that length. For a text of just that length both are what
  /// transformers does. Nothing else depends on it.
  /// Keys that the family's network does not read are left aside, as transformers does, and told in
  /// warnings unless they are known to change nothing.
  /// Throws FileError, Unsupported naming the key and the value, or InvalidArgument for a length
  /// below 0.
  static ModelConfig load(const std::filesystem::path& model, std::int64_t length = 0);
};

/// What the network's matrices are held as while it runs. Norms and biases stay float32.
enum class WeightFormat : std::uint8_t {
  stored,  ///< as the checkpoint has them, quantised ones too; plain ones on a CUDA device in bf16
  int8,    ///< rounded to 8 bits, with one scale for each output
  int4,    ///< rounded to 4 bits, with a scale for each group of inputs; embedding and output layer
           ///< int8
};

/// "stored", "int8" or "int4".
std::string_view name_of(WeightFormat format);
/// The inverse of name_of. Throws InvalidArgument naming the choices.
WeightFormat parse_weight_format(std::string_view name);

struct LoadOptions {
  WeightFormat weights = WeightFormat::stored;
  /// The most tokens that contexts and sessions are meant to hold, 0 for the model's reach: see
  /// ModelConfig::load.
  std::int64_t length = 0;
  /// Stage "weights", in bytes; many times a second while they are quantised.
  ProgressFn progress = {};
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
  /// Keeps queries for indices that learn from them and are added later
  /// (ContextOptions::keep_queries); for those above they are kept anyway.
  bool keep_queries = false;
};

/// Where device memory would go: for a prefill and a session of it, before any work.
struct DevicePlan {
  std::vector<MemoryItem> items;  ///< in the order of a run; empty for the host
  std::int64_t peak = 0;          ///< the most that is taken at a time
  std::int64_t ceiling = 0;
  std::int64_t chunk = 0;  ///< tokens of a prefill chunk: the largest that fits
  /// Of the model's weights in the format asked for: if that is stored, as they are held.
  std::int64_t weights_bytes = 0;
  /// What the checkpoint's matrices are quantised as already ("gptq, 4 bits, groups of 128");
  /// empty: they are plain.
  std::string quantised;
  /// What load would tell of the weights: one line each.
  std::vector<std::string> warnings = {};
  bool fits() const { return peak <= ceiling; }
};

/// Attention of one layer: fills step.out, in the memory of the model's device.
using AttendFn = std::function<void(const AttentionStep& step)>;

class GenerationBatch;

/// A loaded checkpoint. On the host plain weights stay in the checkpoint's dtype, memory-mapped; on
/// a CUDA device they are copied to it in bf16; or they are quantised on the way, on either (see
/// WeightFormat). Those that are quantised already are held by their codes and scales, whose values
/// are kept (docs/reference/weights.md). Const members are safe from many threads, each with its own
/// session. Where a plain weight that is NaN or infinite makes attention's inputs, or what generate
/// chooses from, no number, they throw FileError naming it; load checks vectors and what is rounded.
class Model {
 public:
  /// Loads config.json, tokenizer.json and the safetensors of a directory, or a GGUF file, which
  /// has all of them. Without a tokenizer the model takes token ids only. Throws FileError,
  /// Unsupported or OutOfMemory; Unsupported also where a matrix cannot be held in options.weights
  /// (int4: inputs that are no multiple of 32; int8 and int4: a checkpoint that is quantised
  /// already). on_warning is told the warnings of the configuration, of an output layer in the file
  /// that differs from the embedding that config.json ties it to (it is used, as transformers
  /// does), and, once in the model's life each, when tokens go beyond the model's reach and when
  /// its tokenizer leaves bytes of a text out.
  static Model load(const std::filesystem::path& model, const Device& device = {},
                    WarningFn on_warning = {}, const LoadOptions& options = {});

  /// What a prefill with these options and a session of the context would take of the device's
  /// memory. Checks the weights as load does, by their headers, and throws as it does, but not for
  /// a plan that does not fit. Of a model that has no weights yet those count that its config.json
  /// describes.
  static DevicePlan plan(const std::filesystem::path& model, const Device& device,
                         const PrefillOptions& prefill, const RetrievalOptions& retrieval,
                         WeightFormat weights = WeightFormat::stored);
  /// Whether there are weights, whole or not: a GGUF file, or files of tensors in the directory.
  static bool has_weights(const std::filesystem::path& model);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// tied_embeddings is as the weights are used; see load.
  const ModelConfig& config() const;
  const Device& device() const;
  WeightFormat weights() const;
  /// What rows of this model depend on, in 16 characters, for ContextOrigin::model: configuration,
  /// tokenizer, chat template and weights (of large files their length and a part), how these are
  /// held, and for what length keys are turned. Where the files lie, and what they are named, does
  /// not count but for the order. Reads a few MiB. Throws FileError.
  std::string fingerprint() const;
  /// Throws FileError when the checkpoint has none.
  const Tokenizer& tokenizer() const;

  /// Tells on_warning when that many tokens, context and all, go beyond the model's reach, unless
  /// it was told so before. prefill, generate and logits do this by themselves as they get there.
  void check_reach(std::int64_t tokens) const;

  /// Runs the tokens through the network into a new context. times, when given, is added to.
  /// progress: stage "prefill", in tokens, then "index"; when it throws, the context is discarded.
  /// On a CUDA device the rows of the context are page-locked, so that copies run at full speed.
  /// Throws InvalidArgument for no tokens or ids outside the vocabulary, OutOfMemory before any
  /// work when the rows do not fit.
  std::shared_ptr<const Context> prefill(std::span<const Token> tokens,
                                         const PrefillOptions& options = {},
                                         const ProgressFn& progress = {},
                                         ForwardTimes* times = nullptr) const;

  /// Feeds the prompt to the session, then generates. The session keeps both, except
  /// the last token chosen (the end token, or where the answer ended otherwise). The forward pass
  /// runs at positions session.tokens() and on.
  /// Throws InvalidArgument for an empty prompt, one beyond the session's capacity, options out of
  /// their ranges, and a session on another device or over a context of another shape; FileError
  /// for on_text or stop where the model has no tokenizer. Whatever is thrown, by callbacks too,
  /// the session is then as it was before the call.
  GenerateResult generate(Session& session, std::span<const Token> prompt,
                          const GenerateOptions& options = {}, const TokenFn& on_token = {},
                          const TextFn& on_text = {}) const;

  /// Likewise several sessions over one context, from 1 to 256, each with a prompt of its own,
  /// which are read one after the other. Answers then grow in joint steps, a token of each that has
  /// not ended: weights, and keys and codes as Session::attend_together says, are read once for
  /// all (those of the last matrix, whose output is large, once for 16). Each answers what it would
  /// alone, but for rounding. (With dual chunk attention one after the other.)
  /// GenerateResult::times of the first are those of all, the others' are 0; decode_seconds end
  /// with the session's own answer. Throws as generate does, and as attend_together and
  /// GenerationBatch::add do, before any work; all sessions are then as they were before the call.
  std::vector<GenerateResult> generate_together(std::span<Session* const> sessions,
                                                std::span<const std::vector<Token>> prompts,
                                                const GenerateOptions& options = {},
                                                const TokenOfFn& on_token = {},
                                                const TextOfFn& on_text = {}) const;

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
  friend class GenerationBatch;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
