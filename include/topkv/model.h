// The model runner: a checkpoint in Hugging Face layout or a GGUF file, with its tokenizer, prefill
// and generation.
//
//     auto model = topkv::Model::load("models/needle-14m", topkv::Device::open("auto"));
//     auto context = model.prefill(model.tokenizer().encode(book));
//     topkv::Session session(context, {}, model.device());
//     auto result = model.generate(session, model.tokenizer().encode(question));
//
// Families, by model_type:
//
// - llama, granite, mistral, ministral3, qwen2, qwen3, phi3, glm, glm4, olmo2, smollm3, gemma2,
//   gemma3_text: dense decoders with RMSNorm, RoPE, grouped-query attention and a gated MLP;
// - mixtral, qwen3_moe, gpt_oss: decoders with a mixture of experts in place of the MLP;
// - qwen3_5, qwen3_5_moe, qwen3_next: hybrids. Each fourth layer is attention, and the others are
//   Gated DeltaNet. The last two have a mixture of experts;
// - lfm2, lfm2_moe: hybrids of attention and short convolutions. The second has a mixture of
//   experts;
// - granitemoehybrid: hybrids of attention and Mamba-2, some with a mixture of experts;
// - nemotron_h: hybrids of attention and Mamba-2 whose file has a layer for each part, some with a
//   mixture of experts;
// - deepseek_v2, deepseek_v3, glm4_moe_lite: multi-head latent attention and a mixture of experts.
//
// ModelConfig has the differences between families. See also docs/reference/models.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/generate.h"
#include "topkv/progress.h"
#include "topkv/recurrence.h"
#include "topkv/session.h"
#include "topkv/tokenizer.h"
#include "topkv/warning.h"

namespace topkv {

/// How rotary frequencies are stretched beyond the length that a model was first trained with, as
/// transformers 5 computes them.
///
/// With d = ModelConfig::rotary_dim, pair i of a head's elements turns by position * frequency(i).
/// Without scaling, frequency(i) is theta^(-2i/d).
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,     ///< frequencies are not stretched
    linear,   ///< every frequency is divided by `factor` (position interpolation; Chen et al. 2023,
              ///< eq. 4)
    llama3,   ///< long wavelengths are divided by `factor`, short ones are kept (Llama 3.1)
    dynamic,  ///< theta is multiplied by `theta_factor` (NTK-aware; Peng et al. 2023, sec. 3.1)
    yarn,  ///< a pair is divided by `factor` according to the turns that it makes in the original
           ///< length (Peng et al. 2023, sec. 3.2)
    longrope,  ///< each pair is divided by its entry in `pair_factors` (Ding et al. 2024, eq. 3)
    /// Each pair is divided by its entry in `pair_factors`, a GGUF file's tensor rope_freqs.weight.
    /// For Llama 3.1 and later, such files hold the result of llama3 in this form.
    frequency_factors,
  };
  Kind kind = Kind::none;
  double factor = 1;                    ///< how far the length is stretched
  double original_max_position = 8192;  ///< the length that is stretched, in tokens
  // llama3
  double low_freq_factor = 1;   ///< llama3: low_freq_factor of config.json
  double high_freq_factor = 4;  ///< llama3: high_freq_factor of config.json
  // dynamic
  double theta_factor = 1;  ///< dynamic: the factor on theta for ModelConfig::length
  // yarn
  double beta_fast = 32;  ///< yarn: a pair with at least this number of turns is kept
  double beta_slow = 1;   ///< yarn: a pair with at most this number of turns is divided by factor
  bool truncate = true;   ///< yarn: the borders between the two are rounded outwards to whole pairs
  // yarn and longrope
  double attention_factor = 1;  ///< the factor on cos and sin; scores grow by its square
  // longrope and frequency_factors
  std::vector<double> pair_factors = {};  ///< [d / 2]; longrope: the short or the long factors
};

/// The rotary angles that turn a layer's queries and keys.
enum class LayerRope : std::uint8_t {
  model,    ///< ModelConfig::rope_theta and rope_scaling
  sliding,  ///< ModelConfig::sliding_rope_theta without scaling (windowed layers of Gemma 3)
  none,     ///< no rotation: the layer does not know positions (some layers of SmolLM3)
};

/// A factor on queries that grows with the position (Ministral 3, after Llama 4). The query of
/// position p is multiplied by 1 + beta ln(1 + floor(p / length)).
struct QueryGrowth {
  double beta = 0;          ///< llama_4_scaling_beta of config.json; 0: queries do not grow
  std::int64_t length = 0;  ///< original_max_position_embeddings of config.json

  /// Returns the factor of a position.
  double at(std::int64_t position) const;
};

/// Dual chunk attention (An et al. 2024, arXiv 2402.17463), as the files of Qwen2.5-1M and
/// Qwen3-2507 ask for it and as vLLM computes it.
///
/// Positions are counted within chunks, so that a query is never further from a key than
/// chunk_size. AttentionShape::chunk_len is then chunk_len().
struct DualChunk {
  std::int64_t chunk_size = 0;  ///< the furthest position of a query; 0: the model has no chunks
  /// The distance up to which a query sees keys of the chunk before at their true distance. Below
  /// chunk_size.
  std::int64_t local_size = 0;
  /// Above 0: in a text of n tokens, with n above this number m, scores are multiplied by 0.1 ln(n
  /// / m) + 1.
  std::int64_t original_max_position = 0;

  /// Returns the length of a chunk in tokens.
  std::int64_t chunk_len() const { return chunk_size - local_size; }
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// A token's keys and values of all heads are projections of one latent. Only the latent is kept,
/// and beside it a key that is turned by RoPE and that all heads share. The projections to keys are
/// multiplied with the query instead, and the projections to values with the output. That leaves
/// one KV head, whose key is the latent and the turned key, and whose value is the latent.
/// AttentionShape::keys_are_values is then true, and its head_dim is kv_rank + rope_dim.
struct LatentAttention {
  std::int64_t kv_rank = 0;   ///< elements of a latent; 0: the model has no latent attention
  std::int64_t q_rank = 0;    ///< elements of the latent that queries are made of; 0: there is none
  std::int64_t nope_dim = 0;  ///< elements of a head's key that are made of the latent
  std::int64_t rope_dim = 0;  ///< elements of the key that RoPE turns
  std::int64_t value_dim = 0;  ///< elements of a head's value

  /// Returns the elements of a head's query.
  std::int64_t query_dim() const { return nope_dim + rope_dim; }
};

/// A mixture of experts in place of an MLP (Shazeer et al. 2017, arXiv 1701.06538). A router scores
/// all experts. Each token goes through the experts that score highest, and a weighted sum of their
/// outputs is the result.
struct ExpertMixture {
  std::int64_t experts = 0;            ///< number of experts; 0: the model has no mixture
  std::int64_t per_token = 0;          ///< experts that a token goes through, from 1 to experts
  std::int64_t intermediate_size = 0;  ///< intermediate size of each expert
  /// Intermediate size of one more expert, through which every token goes. 0: there is none.
  std::int64_t shared_intermediate_size = 0;
  /// Whether a sigmoid of a projection of its own weighs what the shared expert gives.
  bool shared_gate = false;
  /// True: the weights of the chosen experts are their shares of a softmax over all experts, which
  /// add up to less than 1. False: the weights are a softmax over the chosen experts.
  bool softmax_over_all = false;
  /// The scores of experts are sigmoids of what the router gives, and so are the weights of the
  /// chosen ones (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
  bool sigmoid = false;
  bool choice_bias = false;  ///< a learned bias is added to the sigmoids when experts are chosen
  /// With sigmoid: the weights of a token's experts are divided by their sum plus least_sum.
  bool sums_to_one = false;
  double least_sum = 1e-20;
  double scale = 1;  ///< the factor on all weights
  /// Experts lie in `groups` groups of equal size. A token goes through experts of the
  /// `chosen_groups` groups that score highest. A group's score is its highest score; with sigmoid,
  /// the sum of its two highest.
  std::int64_t groups = 1;
  std::int64_t chosen_groups = 1;
  bool biases = false;  ///< whether the router and the experts have biases
  /// Every token goes through an MLP too, of the model's sizes. MLP and experts read the residual
  /// through norms of their own, and what each gives is normalised before the two are added
  /// (Gemma 4). The router has a norm without weights and a factor for each input, and the weight
  /// of a chosen expert has a factor of that expert.
  bool own_norms = false;
  std::vector<bool> layers = {};  ///< whether a layer has a mixture, not an MLP; empty: all have
  /// Returns whether a layer has a mixture of experts.
  bool in(std::int64_t layer) const {
    return experts > 0 && (layers.empty() || layers[static_cast<std::size_t>(layer)]);
  }
};

/// Inputs of each token for each layer (Gemma 4's E models): rows of a table, and a projection of
/// the token's embedding. Behind its MLP a layer adds a gated projection of its input.
struct LayerInputs {
  std::int64_t size = 0;   ///< elements of a token's input for one layer; 0: there are none
  std::int64_t vocab = 0;  ///< rows of the table, vocab_size or more
};

/// The configuration of a model: the entries of config.json that change the forward pass, and some
/// of generation_config.json. All sizes are checked.
struct ModelConfig {
  enum class Activation : std::uint8_t {
    silu,          ///< silu(g) u, for the outputs g and u of the two projections in
    gelu_tanh,     ///< gelu(g) u, with the tanh form of GELU
    relu_squared,  ///< max(u, 0) u; there is no projection to g
    clamped_silu,  ///< min(g, c) sigmoid(1.702 min(g, c)) (clamp(u, -c, c) + 1), c: swiglu_limit
  };

  /// A layer of attention or of a recurrence, and the MLP behind it, as a file numbers them that
  /// has a layer for each.
  struct StoredLayer {
    std::int64_t mixer = 0;
    std::int64_t mlp = -1;  ///< -1: there is no MLP behind it
  };

  std::string model_type;  ///< the family: "llama", "qwen3", …
  AttentionShape attention;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  ///< intermediate size of an MLP
  /// Intermediate size of an MLP in layers that attend the rows of another layer; 0:
  /// intermediate_size.
  std::int64_t sharing_intermediate_size = 0;
  LatentAttention latent;
  ExpertMixture mixture;
  std::vector<StoredLayer> stored_layers = {};  ///< [layers]; empty: each is one layer of the file
  LayerInputs layer_inputs;
  bool layer_scale = false;  ///< behind each layer the residual is multiplied by a learned number
  // Layers that have a state (AttentionShape::state_size) are of one kind, the one that has sizes.
  GatedDeltaNet delta;           ///< the sizes of Gated DeltaNet layers
  Mamba2 mamba;                  ///< the sizes of Mamba-2 layers
  bool mamba_bias = false;       ///< their convolution has a bias
  ShortConvolution convolution;  ///< the sizes of short convolution layers
  std::int64_t vocab_size = 0;
  std::int64_t max_position = 0;  ///< max_position_embeddings of config.json
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  std::int64_t rotary_dim = 0;    ///< number of a head's first elements that RoPE turns; even
  bool rope_interleaved = false;  ///< pairs are elements (2i, 2i + 1), not (i, i + rotary_dim / 2)
  QueryGrowth query_growth;       ///< every layer has RoPE over the whole head, if beta is not 0
  DualChunk dual_chunk;
  double sliding_rope_theta = 0;  ///< theta of LayerRope::sliding; 0: no layer has it
  /// Elements of a head that LayerRope::sliding turns; 0: rotary_dim.
  std::int64_t sliding_rotary_dim = 0;
  std::vector<LayerRope> layer_rope = {};  ///< [layers]; empty: LayerRope::model in every layer
  /// The most tokens that contexts and sessions are meant to hold: the length that load was given.
  /// If that was 0, it is reach().
  std::int64_t length = 0;
  bool qkv_bias = false;      ///< the projections to q, k and v have biases
  bool o_bias = false;        ///< the projection of attention's output has a bias
  bool mlp_bias = false;      ///< the projections of the MLP have biases
  bool norm_inputs = true;    ///< RMSNorm on the inputs of attention and MLP
  bool norm_outputs = false;  ///< RMSNorm on their outputs, before these join the residual
  bool qk_norm = false;       ///< RMSNorm on q and k before RoPE, over each head (Qwen3)
  bool value_norm = false;    ///< RMSNorm without weights on v, over each head (Gemma 4)
  /// In layers without a sliding window there is no projection to v: the values are what the
  /// projection to k gives, before its norm (Gemma 4's attention_k_eq_v).
  bool values_from_keys = false;
  bool qk_norm_whole = false;  ///< that norm is over all heads of a token at once (OLMo 2)
  /// The output of attention is multiplied by a sigmoid of a gate (Qwen3-Next; Qiu et al. 2025,
  /// arXiv 2505.06708). The projection to q gives the gate behind each query head.
  bool output_gate = false;
  /// The one layer of the network drafts tokens: it reads a token's embedding and the hidden state
  /// of the token before it (DeepSeek-V3, arXiv 2412.19437, section 2.2). load never sets it.
  bool draft_layer = false;
  Activation activation = Activation::silu;
  double swiglu_limit = 0;  ///< c of Activation::clamped_silu
  /// Each query head has one more score under its softmax, a learned one, whose row of V is 0
  /// (gpt-oss; Xiao et al. 2023, arXiv 2309.17453, section 3.3).
  bool attention_sinks = false;
  double embedding_scale = 1;    ///< the factor on rows of the embedding as they enter the network
  double residual_scale = 1;     ///< the factor on what each part of a layer adds to the residual
  double logit_scale = 1;        ///< the factor on logits
  double final_softcap = 0;      ///< c: a logit x becomes c tanh(x / c) (Gemma 2); 0: not capped
  bool tied_embeddings = false;  ///< the output layer is the embedding
  Token bos = -1;                ///< the token that begins a text; -1: none
  std::vector<Token> eos = {};   ///< each of these tokens ends an answer
  /// How the model's makers suggest to sample: generation_config.json, read as transformers reads
  /// it. Greedy without do_sample. It is a default for callers; topkv does not apply it by itself.
  SamplingOptions sampling = {};
  /// One line that names options of generation_config.json that topkv's sampler does not have, such
  /// as typical_p or num_beams. For callers that use `sampling`. Empty: there are none.
  std::string sampling_warning = {};
  /// Warnings, one line each: entries of config.json that topkv, like transformers, does not use.
  std::vector<std::string> warnings = {};

  /// Returns the number of positions that the model was made for.
  ///
  /// - Without scaling, and with llama3 and frequency_factors: max_position.
  /// - With linear, dynamic, yarn, and LongRoPE's long factors: the stretched length, if it is
  ///   above max_position. With dynamic it is `length`.
  /// - With LongRoPE's short factors: the original length, if it is below max_position.
  std::int64_t reach() const;
  /// Returns one line of warning, with both numbers, when `tokens` is above reach(). Else returns
  /// an empty text.
  std::string beyond_reach(std::int64_t tokens) const;
  /// Returns the bytes of K and V of one token over all layers. A context keeps less where layers
  /// have a sliding window (AttentionShape::context_bytes).
  std::int64_t kv_bytes_per_token(KvDType dtype) const;
  /// Returns whether an MLP has a projection to g.
  bool has_mlp_gate() const { return activation != Activation::relu_squared; }
  /// Returns whether a layer has an MLP or a mixture of experts.
  bool has_mlp(std::int64_t layer) const {
    return stored_layers.empty() || stored_layers[static_cast<std::size_t>(layer)].mlp >= 0;
  }
  /// Returns whether a layer has an MLP through which every token goes, beside a mixture or alone.
  bool has_dense_mlp(std::int64_t layer) const {
    return has_mlp(layer) && (!mixture.in(layer) || mixture.own_norms);
  }
  /// Returns the values of the state of a recurrent layer; 0: no layer has a state.
  std::int64_t state_size() const {
    if (convolution.width > 0) return convolution.state_size();
    if (mamba.heads > 0) return mamba.state_size();
    return delta.key_heads > 0 ? delta.state_size() : 0;
  }
  /// Returns the intermediate size of a layer's MLP.
  std::int64_t intermediate_size_of(std::int64_t layer) const {
    return sharing_intermediate_size > 0 && attention.row_layer_of(layer) != layer
               ? sharing_intermediate_size
               : intermediate_size;
  }
  /// Returns the elements of a head that the angles of LayerRope::sliding turn.
  std::int64_t sliding_rotary() const {
    return sliding_rotary_dim > 0 ? sliding_rotary_dim : rotary_dim;
  }
  /// Returns the rotary angles of a layer.
  LayerRope rope_of(std::int64_t layer) const {
    return layer_rope.empty() ? LayerRope::model : layer_rope[static_cast<std::size_t>(layer)];
  }

  /// Reads the configuration of a model: config.json and generation_config.json of a directory, or
  /// the metadata of a GGUF file. generation_config.json may be missing. It is read for end tokens
  /// and sampling. RoPE may be given as rope_theta and rope_scaling, or as rope_parameters.
  ///
  /// length: the most tokens that contexts and sessions of this model are meant to hold. 0 means
  /// the model's reach.
  ///
  /// LongRoPE and dynamic NTK turn keys in another way for long texts than for short ones, and
  /// stored rows cannot be turned again. The length therefore decides once, here:
  /// - LongRoPE uses its long factors when length is above the original length, else the short
  ///   ones.
  /// - Dynamic NTK uses the theta of that length.
  ///
  /// For a text of exactly that length, both are what transformers does. Nothing else depends on
  /// it.
  ///
  /// Entries that the family's network does not read are ignored, as in transformers. `warnings`
  /// names them, except entries that are known to change nothing.
  ///
  /// Throws FileError for an invalid file, and InvalidArgument for a length below 0. Throws
  /// Unsupported for a model that topkv does not have; the message names the key and the value.
  static ModelConfig load(const std::filesystem::path& model, std::int64_t length = 0);
};

/// How the network's matrices are held while it runs. Norms and biases stay float32.
enum class WeightFormat : std::uint8_t {
  stored,  ///< as in the checkpoint, quantised or plain; on a CUDA device plain ones in bf16
  int8,    ///< rounded to 8 bits, with a scale for each output
  int4,    ///< rounded to 4 bits, with a scale for each group of inputs; embedding and output layer
           ///< are int8
};

/// Returns "stored", "int8" or "int4".
std::string_view name_of(WeightFormat format);
/// Returns the format of a name that name_of returns. Throws InvalidArgument for another name; the
/// message has the choices.
WeightFormat parse_weight_format(std::string_view name);

/// Options of Model::load.
struct LoadOptions {
  WeightFormat weights = WeightFormat::stored;
  /// The most tokens that contexts and sessions are meant to hold; 0 means the model's reach. See
  /// ModelConfig::load.
  std::int64_t length = 0;
  /// Stage "weights", in bytes. Reports come many times a second while weights are quantised.
  ProgressFn progress = {};
  /// A file with a trained indexer for this model (docs/reference/indexer-files.md). Its layers get
  /// index keys, and sessions attend the rows that the indexer chooses. Empty: the model has no
  /// indexer. A CPU alone runs indexers.
  std::filesystem::path indexer = {};
};

/// Receives logits of tokens of a prefill: [count, vocab_size], of tokens number `first` and on.
using LogitsFn = std::function<void(std::int64_t first, std::span<const float> logits)>;

/// Options of Model::prefill.
struct PrefillOptions {
  PrefillAttention attention = {};
  /// Tokens of a step; fewer take less memory for activations. Results differ by rounding alone. 0:
  /// a number that suits the device and its memory.
  std::int64_t chunk = 0;
  /// How rows are stored. A CUDA device takes bf16 for both halves, or q8 or q4 for each half.
  KvDType kv_dtype = {};
  std::int64_t memory_budget = 0;  ///< bytes that rows may take; 0: the memory that is free
  /// Specs of the indices that the context gets. On a CUDA device, the host's cores build indices
  /// that grow key by key (hnsw) while the device computes. Others are built at the end.
  std::vector<std::string> indices = {};
  /// Keeps queries for indices that learn from them and are added later
  /// (ContextOptions::keep_queries). For such indices among `indices` they are kept in any case.
  bool keep_queries = false;
  /// In layers with a trained indexer, the number of blocks of index keys that a token chooses:
  /// IndexerShape::top of the context. With every_index_block, `attention` applies to these
  /// layers as to others. Not set: as the indexer's file says.
  std::optional<std::int64_t> indexer_top = {};
  /// Receives the logits of all tokens while they are read, some tokens at a time. For scoring: it
  /// takes a product with the output layer for each token. Empty: no logits are computed.
  LogitsFn on_logits = {};
};

/// A plan of device memory for a prefill and a session over its context, made before any work.
/// Sizes are in bytes.
struct DevicePlan {
  std::vector<MemoryItem> items;  ///< in the order in which a run takes them; empty for the host
  std::int64_t peak = 0;          ///< the most that is taken at one time
  std::int64_t ceiling = 0;       ///< the most that topkv may take (DeviceMemory::ceiling)
  std::int64_t chunk = 0;         ///< tokens of a prefill chunk: the largest that fits
  /// How the text is read: as was asked, or what Prefill::automatic stands for within the ceiling.
  /// A text of unknown length counts as a short one.
  PrefillAttention prefill = {};
  /// The model's weights in the format that was asked for, as the device holds them.
  std::int64_t weights_bytes = 0;
  /// How the checkpoint's matrices are quantised already, such as "gptq, 4 bits, groups of 128".
  /// Empty: they are plain.
  std::string quantised;
  /// Warnings about the weights that load would give, one line each.
  std::vector<std::string> warnings = {};
  /// Returns whether the peak is within the ceiling.
  bool fits() const { return peak <= ceiling; }
};

/// Computes the attention of one layer: fills step.out, and step.lse unless it is null, in the
/// memory of the model's device.
using AttendFn = std::function<void(const AttentionStep& step)>;

class GenerationBatch;

/// A loaded checkpoint, which prefills contexts and generates answers.
///
/// Const members are safe from many threads, each with its own session.
///
/// Weights, in the format WeightFormat::stored:
/// - On the host, plain weights stay in the checkpoint's dtype, memory-mapped.
/// - On a CUDA device, plain weights are copied to it in bf16.
/// - Weights that the checkpoint has quantised are held by their codes and scales, whose values are
///   kept (docs/reference/weights.md).
///
/// Invalid weights: load checks norms, biases, and weights that it rounds. Other weights that are
/// NaN or infinite show when the network runs. prefill, generate and logits then throw FileError,
/// which names the weight.
class Model {
 public:
  /// Loads a model: config.json, tokenizer.json and the safetensors of a directory, or a GGUF file,
  /// which has all three. A model without a tokenizer takes token ids only.
  ///
  /// on_warning receives:
  /// - the warnings of the configuration;
  /// - tensors that the network does not read;
  /// - an output layer that differs from the embedding to which config.json ties it; it is used, as
  ///   in transformers;
  /// - once in the model's life: tokens that go beyond the model's reach;
  /// - once in the model's life: bytes of a text that the tokenizer leaves out;
  /// - once in the model's life: keys in q4 whose bias goes through a norm, and so is not taken
  ///   off.
  ///
  /// Throws FileError for an invalid file, and OutOfMemory when the weights do not fit. Throws
  /// Unsupported for a model that topkv does not have, for an indexer on a CUDA device, and for
  /// weights that options.weights cannot hold:
  /// - int4: a matrix whose inputs are not a multiple of 32;
  /// - int8 and int4: a checkpoint that is quantised already.
  static Model load(const std::filesystem::path& model, const Device& device = {},
                    WarningFn on_warning = {}, const LoadOptions& options = {});

  /// Returns the device memory that a prefill with these options, and a session over its context,
  /// would take. Reads the configuration and the headers of the weights. A model without weights
  /// yet is planned by its config.json.
  ///
  /// tokens: the length of the text; 0 if it is not known. A sparse prefill needs memory for each
  /// token of one layer, which then does not count.
  ///
  /// beside: device memory that others will take meanwhile, in bytes. It counts as used.
  ///
  /// Throws FileError and Unsupported as load does, and Unsupported as resolve_prefill does. A plan
  /// that does not fit is returned, not thrown.
  static DevicePlan plan(const std::filesystem::path& model, const Device& device,
                         const PrefillOptions& prefill, const RetrievalOptions& retrieval,
                         WeightFormat weights = WeightFormat::stored, std::int64_t tokens = 0,
                         std::int64_t beside = 0);
  /// Returns whether the model has weights, complete or not: whether it is a GGUF file, or a
  /// directory with files of tensors.
  static bool has_weights(const std::filesystem::path& model);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// Returns the configuration, with two changes to the files. Member tied_embeddings says how the
  /// weights are used (see load). Member eos also has the tokenizer's special tokens whose names
  /// are known to end a turn, such as "<|im_end|>".
  const ModelConfig& config() const;
  /// Returns the device that the model computes on.
  const Device& device() const;
  /// Returns the format that the weights are held in.
  WeightFormat weights() const;
  /// Returns the host memory that a session keeps for the model's own draft layer, in bytes, once
  /// the layer may draft for it (SessionStats::draft_bytes). 0: the model has no draft layer, or
  /// its family's is not supported, or the device is a CUDA device.
  std::int64_t draft_layer_bytes() const;
  /// Returns 16 characters that identify everything that rows of this model depend on, for
  /// ContextOrigin::model:
  /// - configuration, tokenizer, chat template and weights, by the content of their files; of files
  ///   above 1 MiB, their length and parts of them;
  /// - how the weights are held (WeightFormat);
  /// - the file of a trained indexer (LoadOptions::indexer), by its content;
  /// - the length for which keys are turned (ModelConfig::load).
  ///
  /// Folder and names of the files do not count, except for their order. Reads a few MiB. Throws
  /// FileError when a file cannot be read.
  std::string fingerprint() const;
  /// Returns the tokenizer. Throws FileError when the checkpoint has no tokenizer.
  const Tokenizer& tokenizer() const;

  /// Warns when `tokens` tokens, context and all, go beyond the model's reach, unless the model has
  /// warned of that before. prefill, generate and logits call it themselves.
  void check_reach(std::int64_t tokens) const;

  /// Returns the most host memory that the rows take while prefill reads `tokens` tokens, in bytes.
  /// It is what AttentionShape::context_bytes says, and more for layers with a sliding window.
  std::int64_t prefill_rows_bytes(std::int64_t tokens, const PrefillOptions& options) const;

  /// Returns how prefill would read `tokens` tokens now: what the options say, or what
  /// Prefill::automatic stands for. That is resolve_prefill()'s answer, or dense if a sparse
  /// prefill needs more memory than the device has left. Later calls may answer otherwise: read
  /// with the answer to report it. Throws Unsupported as resolve_prefill does.
  PrefillAttention prefill_attention(const PrefillOptions& options, std::int64_t tokens) const;

  /// Runs tokens through the network into a new context.
  ///
  /// - progress: stage "prefill", in tokens, then "index", in keys. An exception that it throws
  ///   discards the context and reaches the caller.
  /// - times: not null, the times are added to it.
  /// - shares: not null, it receives what tokens attended in each layer, [layers]
  ///   (ContextBuilder::share).
  ///
  /// On a CUDA device the rows of the context are page-locked, so that copies run at full speed.
  ///
  /// Throws InvalidArgument for no tokens, for ids outside of the vocabulary, and for an invalid
  /// index. Throws Unsupported for rows that the device does not take, and as resolve_prefill does.
  /// Throws OutOfMemory before any work when the rows do not fit.
  std::shared_ptr<const Context> prefill(std::span<const Token> tokens,
                                         const PrefillOptions& options = {},
                                         const ProgressFn& progress = {},
                                         ForwardTimes* times = nullptr,
                                         std::vector<PrefillShare>* shares = nullptr) const;

  /// Feeds a prompt to a session, at positions session.tokens() and on, and generates an answer.
  ///
  /// The session keeps the prompt and the answer, except the last token that was chosen. That is
  /// the end token, or the answer's last token if there is no end token.
  ///
  /// Throws:
  /// - InvalidArgument for an empty prompt or one beyond the session's capacity, and for options
  ///   that are out of range;
  /// - InvalidArgument for a session on another device, or over a context of another shape;
  /// - FileError for on_text or stop when the model has no tokenizer.
  ///
  /// Whatever is thrown, by callbacks too, the session is then as it was before the call.
  GenerateResult generate(Session& session, std::span<const Token> prompt,
                          const GenerateOptions& options = {}, const TokenFn& on_token = {},
                          const TextFn& on_text = {}) const;

  /// Feeds prompts to 1 to 256 sessions over one context, and generates their answers together.
  /// prompts[i] goes to sessions[i].
  ///
  /// Prompts are read one after the other. Answers then grow in joint steps of one token for each
  /// session that has not ended. A step reads weights once for all sessions, and keys and codes as
  /// Session::attend_together does. It reads the output layer, which is large, once for each 16
  /// sessions. With dual chunk attention the sessions are stepped one after the other.
  ///
  /// Each answer differs by rounding alone from the answer of generate. The first result's `times`
  /// hold the times of all; in other results they are 0. Each decode_seconds ends with the
  /// session's own answer.
  ///
  /// Before any work, throws as generate does for each session, as Session::check_together does,
  /// and as GenerationBatch::add does for want of memory. Whatever is thrown, by callbacks too, all
  /// sessions are then as they were before the call.
  std::vector<GenerateResult> generate_together(std::span<Session* const> sessions,
                                                std::span<const std::vector<Token>> prompts,
                                                const GenerateOptions& options = {},
                                                const TokenOfFn& on_token = {},
                                                const TextOfFn& on_text = {}) const;

  /// Returns the logits [tokens, vocab_size] of a dense forward pass over tokens, for tests and
  /// scoring. Throws InvalidArgument for no tokens and for ids outside of the vocabulary.
  std::vector<float> logits(std::span<const Token> tokens) const;
  /// Feeds tokens to a session, as generate feeds them, and returns their logits [tokens,
  /// vocab_size]. Throws as generate does. Whatever is thrown, the session is then as it was before
  /// the call.
  std::vector<float> logits(Session& session, std::span<const Token> tokens) const;
  /// Returns the logits [tokens, vocab_size] of tokens at positions first and on, whose attention
  /// the caller computes. `attend` is called for each layer in turn, with at most 256 tokens at a
  /// time.
  std::vector<float> logits(std::span<const Token> tokens, std::int64_t first,
                            const AttendFn& attend) const;

  struct Impl;  ///< for topkv itself

 private:
  friend class DraftModel;
  friend class GenerationBatch;
  friend class Grammar;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
