// The families of decoders that the model runner knows, as data: what tells them apart in a
// config.json (keys, and what a missing one means), in the names of a checkpoint's tensors and in
// the network. A family is one entry of the table; nothing asks for one by its name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "topkv/model.h"

namespace topkv {

/// Names of a layer's norms, as they stand behind "model.layers.N." and before ".weight"; empty:
/// the family has no such norm.
struct NormNames {
  std::string_view before_attention = "input_layernorm";
  std::string_view after_attention = "";  ///< of what attention gives, before it is added
  std::string_view before_mlp = "post_attention_layernorm";
  std::string_view after_mlp = "";
};

/// Names of the matrices and norms of a layer, behind "model.layers.N.", and of the last norm,
/// behind "model.".
struct PartNames {
  std::string_view attention = "self_attn.";
  std::string_view attention_output = "o_proj";
  std::string_view q_norm = "q_norm";
  std::string_view k_norm = "k_norm";
  std::string_view mlp = "mlp.";
  std::array<std::string_view, 3> mlp_projections = {"gate_proj", "up_proj", "down_proj"};
  std::string_view mlp_fused = "gate_up_proj";  ///< with Family::fused_gate_up
  std::string_view final_norm = "norm";
};

/// Mamba-2 layers of a family: what missing keys mean, and how they are called.
struct FamilyMamba {
  Mamba2 sizes = {};  ///< heads 0: the family has no such layers
  std::string_view heads = "mamba_n_heads";
  std::string_view head_dim = "mamba_d_head";
  std::string_view groups = "mamba_n_groups";
  std::string_view state_dim = "mamba_d_state";
  std::string_view kernel = "mamba_d_conv";
  std::string_view bias = "mamba_conv_bias";
  std::string_view at = "mamba.";  ///< of the tensors, behind "model.layers.N."
};

/// Mixtures of experts of a family: what a missing key means, and names of tensors, as they stand
/// behind "model.layers.N.".
struct FamilyMixture {
  std::int64_t experts = 0;            ///< num_experts or num_local_experts; 0: no mixtures
  std::int64_t per_token = 0;          ///< num_experts_per_tok
  std::int64_t intermediate_size = 0;  ///< of intermediate_size_key; 0: the MLPs' size is theirs
  std::string_view intermediate_size_key = "moe_intermediate_size";
  bool reads_softmax = false;   ///< norm_topk_prob, whose false is softmax_over_all
  bool norm_topk_prob = false;  ///< what it means when missing
  std::int64_t shared = 0;      ///< of shared_size_key; 0: no expert is shared
  std::string_view shared_size_key = "shared_expert_intermediate_size";
  std::int64_t shared_experts = 0;  ///< n_shared_experts, whose widths add up; 0: likewise
  std::string_view shared_at = "mlp.shared_expert";
  std::string_view shared_gate = "";  ///< ExpertMixture::shared_gate; empty: there is none
  bool sigmoid = false;               ///< ExpertMixture::sigmoid
  bool reads_groups = false;          ///< n_group and topk_group; experts are n_routed_experts
  std::int64_t groups = 1;            ///< n_group
  std::int64_t chosen_groups = 1;     ///< topk_group
  double scale = 1;                   ///< routed_scaling_factor
  double least_sum = 1e-20;           ///< ExpertMixture::least_sum
  std::string_view choice_bias = "mlp.gate.e_score_correction_bias";  ///< with sigmoid
  std::string_view choice_bias_key = "";  ///< a flag, true when missing; empty: there is a bias
  std::int64_t first_dense = -1;          ///< of first_dense_key; -1: not read
  std::string_view first_dense_key = "first_k_dense_replace";
  bool reads_layers = false;  ///< decoder_sparse_step and mlp_only_layers
  std::string_view router = "mlp.gate";
  std::string_view experts_at = "mlp.experts";
  /// Of each expert, behind experts_at, its number and a dot.
  std::array<std::string_view, 3> projections = {"gate_proj", "up_proj", "down_proj"};
  /// All experts lie in one tensor: gate_up_proj, whose outputs are gate and up in turns, and
  /// down_proj, both with biases; the router has one too.
  bool fused = false;
  /// All experts lie in two tensors [experts, outputs, inputs]: projections[0], gate before up, and
  /// projections[2]. There are no biases.
  bool stacked = false;
  std::string_view stacked_ending = ".weight";  ///< of the names of these two tensors
  /// A flag that says whether there are experts; empty: there are. If so, their number and those of
  /// a token have no value that a missing key would mean.
  std::string_view switch_key = {};
  std::string_view per_token_key = "num_experts_per_tok";
  bool own_norms = false;  ///< ExpertMixture::own_norms
  /// There may be 0 experts. Then the shared expert is the layer's MLP (PartNames::mlp).
  bool shared_is_mlp = false;
};

/// A layer behind the last one that drafts tokens (DraftLayer): names of its tensors. Its head and
/// its embedding are the model's; copies of them are ignored.
struct FamilyDraftLayer {
  std::string_view projection = "";  ///< of embedding and hidden state; empty: topkv runs none
  std::string_view embedding_norm = "";
  std::string_view state_norm = "";
  std::string_view final_norm = "";
  std::string_view at = "";     ///< in front of these; empty: "model.layers.N.", N: of layers
  std::string_view layer = "";  ///< of the decoder layer, behind `at`
};

struct Family {
  std::string_view name;  ///< model_type

  // What a missing key means.
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 0;
  std::string_view mlp_size_key = "intermediate_size";
  std::int64_t layers = 32;
  std::int64_t q_heads = 32;
  std::int64_t kv_heads = 0;  ///< 0: as many as query heads
  std::int64_t head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  std::int64_t max_position = 0;
  double rms_norm_eps = 1e-6;
  std::string_view rms_norm_eps_key = "rms_norm_eps";
  bool tied_embeddings = false;
  Token bos = -1;               ///< -1: none
  std::vector<Token> eos = {};  ///< empty: none

  // Which projections have biases.
  bool reads_attention_bias = false;  ///< attention_bias puts biases on q, k, v (and o, see below)
  bool attention_bias = false;        ///< what it means when missing
  bool always_qkv_bias = false;       ///< q, k, v have biases
  bool never_o_bias = false;          ///< attention_bias leaves o without one
  bool reads_mlp_bias = false;

  // RoPE.
  double rope_theta = 10000;
  bool partial_rotary = false;       ///< reads partial_rotary_factor
  double partial_rotary_factor = 1;  ///< what it means when missing
  bool rope_interleaved = false;     ///< ModelConfig::rope_interleaved
  /// original_max_position_embeddings is a key of the family itself, at the top level, with this
  /// default; 0: it is not, and stands with the scaling.
  std::int64_t original_max_position = 0;
  bool longrope_only = false;  ///< all scalings are LongRoPE, whatever older files call it
  /// A missing rope_parameters, in JSON; empty: RoPE without scaling.
  std::string_view rope_parameters = {};
  /// Layers without a window have a scaling of the type proportional: the first pairs of a head, by
  /// partial_rotary_factor, are turned as those of a whole head are.
  bool proportional_rope = false;
  bool query_growth = false;      ///< reads llama_4_scaling_beta beside the scaling
  double sliding_rope_theta = 0;  ///< > 0: windowed layers have a theta of their own, this default
  bool reads_no_rope_layers = false;

  // Which layers have a sliding window.
  enum class Sliding : std::uint8_t {
    never,
    all_layers,   ///< wherever sliding_window is a number
    all_if_on,    ///< with use_sliding_window: all layers
    last_layers,  ///< with use_sliding_window: from max_window_layers on, or by layer_types
    no_rope,      ///< with use_sliding_window: those without RoPE, or by layer_types
    pattern,      ///< all but each sliding_pattern-th, or by layer_types
  } sliding = Sliding::never;
  std::int64_t window = 0;           ///< a missing sliding_window; 0: none
  std::int64_t sliding_pattern = 0;  ///< a missing sliding_window_pattern, where that is read
  bool reads_sliding_pattern = false;

  /// A missing global_head_dim: the width of heads in layers without a window, which may also have
  /// another number of KV heads (num_global_key_value_heads, attention_k_eq_v) and share rows
  /// (num_kv_shared_layers, use_double_wide_mlp). per_layer_config may give both. 0: layers have
  /// heads of one kind.
  std::int64_t global_head_dim = 0;
  bool value_norm = false;            ///< ModelConfig::value_norm
  std::int64_t layer_input_size = 0;  ///< a missing hidden_size_per_layer_input; 0: it is not read
  bool layer_scale = false;           ///< ModelConfig::layer_scale
  double attention_scale = 0;         ///< of scores; 0: as AttentionShape::scale has it

  // The network.
  NormNames norms = {};
  PartNames names = {};
  double norm_offset = 0;  ///< weights of norms are stored less this
  bool qk_norm = false;
  bool qk_norm_whole = false;
  /// Layers are Gated DeltaNet, by layer_types, or all but each full_attention_interval-th. The
  /// sizes are what missing keys mean (linear_num_key_heads and on).
  GatedDeltaNet delta = {};
  FamilyMamba mamba = {};  ///< layers are Mamba-2, by layer_types
  /// A layer of the file is attention, Mamba-2, an MLP or a mixture of experts, by
  /// layers_block_type or hybrid_override_pattern.
  bool parts_apart = false;
  /// Layers are short convolutions, by layer_types or full_attn_idxs, of conv_L_cache tokens (this
  /// default) and hidden_size channels; tie_embedding is another name for tie_word_embeddings. 0:
  /// the family has no such layers.
  std::int64_t convolution_kernel = 0;
  /// block_auto_adjust_ff_dim, block_ffn_dim_multiplier and block_multiple_of say what becomes of
  /// intermediate_size; block_ff_dim is another name for it.
  bool adjusts_intermediate_size = false;
  /// What missing keys mean (kv_lora_rank and on). kv_rank 0: attention is not latent.
  LatentAttention latent = {};
  bool fused_delta = false;        ///< in_proj_qkvz and in_proj_ba have all projections
  bool output_gate = false;        ///< ModelConfig::output_gate
  bool gelu = false;               ///< ModelConfig::Activation, read from hidden_activation
  bool relu_squared = false;       ///< likewise, from mlp_hidden_act
  bool scaled_embedding = false;   ///< by sqrt(hidden_size)
  bool reads_query_scale = false;  ///< query_pre_attn_scalar, 256 when missing
  /// embedding_multiplier, attention_multiplier, residual_multiplier and logits_scaling; 1 when
  /// missing.
  bool reads_multipliers = false;
  bool never_rope = false;           ///< no layer has RoPE
  bool reads_position_type = false;  ///< position_embedding_type: without "rope" no layer has RoPE
  // attn_logit_softcapping and final_logit_softcapping when missing, 0: none; nothing: not read.
  std::optional<double> attention_softcap = {};
  std::optional<double> final_softcap = {};
  FamilyMixture mixture = {};
  FamilyDraftLayer draft_layer = {};
  bool attention_sinks = false;  ///< ModelConfig::attention_sinks, in self_attn.sinks
  bool clamped = false;          ///< Activation::clamped_silu, swiglu_limit 7
  bool fused_qkv = false;        ///< self_attn.qkv_proj holds the rows of q, k and v
  bool fused_gate_up = false;    ///< mlp.gate_up_proj holds the rows of gate and up

  // Of config_keys.h.
  std::vector<std::string_view> own_keys = {};  ///< read beside those that every family reads
  std::string_view class_name = {};             ///< of its classes, in lower case, if not its name
};

std::span<const Family> families();

/// Null: topkv does not know it. A name that ends in _text is the text model's of a family that
/// reads pictures too.
const Family* find_family(std::string_view model_type);

/// REQUIRES: one of topkv's.
const Family& family_of(const ModelConfig& config);

}  // namespace topkv
