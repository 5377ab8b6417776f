#include "src/model/families/families.h"

#include <algorithm>
#include <array>

namespace topkv {

namespace {

constexpr NormNames gemma_norms = {.before_attention = "input_layernorm",
                                   .after_attention = "post_attention_layernorm",
                                   .before_mlp = "pre_feedforward_layernorm",
                                   .after_mlp = "post_feedforward_layernorm"};

/// Adds what Qwen's hybrids have in common to what one of them has of its own.
Family hybrid(Family own) {
  own.q_heads = 16;
  own.head_dim = 256;
  own.max_position = 32768;
  own.reads_attention_bias = true;
  own.partial_rotary = true;
  own.partial_rotary_factor = 0.25;
  own.norm_offset = 1;
  own.qk_norm = true;
  own.delta = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .kernel = 4};
  own.output_gate = true;
  own.draft_layer = {.projection = "fc",
                     .embedding_norm = "pre_fc_norm_embedding",
                     .state_norm = "pre_fc_norm_hidden",
                     .final_norm = "norm",
                     .at = "mtp.",
                     .layer = "layers.0."};
  own.own_keys.insert(own.own_keys.end(),
                      {"attention_bias", "layer_types", "full_attention_interval",
                       "attn_output_gate", "linear_num_key_heads", "linear_num_value_heads",
                       "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
                       "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"});
  return own;
}

/// Adds what Gemma 4's text models have in common to what one of them has of its own.
Family gemma4(Family own) {
  own.vocab_size = 262144;
  own.hidden_size = 2304;
  own.intermediate_size = 9216;
  own.layers = 30;
  own.q_heads = 8;
  own.kv_heads = 4;
  own.head_dim = 256;
  own.tied_embeddings = true;
  own.bos = 2;
  own.eos = {1};
  own.reads_attention_bias = true;
  own.rope_theta = 1e6;
  own.rope_parameters =
      R"({"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                             "partial_rotary_factor": 0.25},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})";
  own.proportional_rope = true;
  own.sliding_rope_theta = 1e4;
  own.sliding = Family::Sliding::pattern;
  own.sliding_pattern = 6;
  own.global_head_dim = 512;
  own.value_norm = true;
  own.layer_scale = true;
  own.attention_scale = 1;
  own.norms = gemma_norms;
  own.qk_norm = true;
  own.gelu = true;
  own.scaled_embedding = true;
  own.final_softcap = 0;
  own.own_keys.insert(own.own_keys.end(),
                      {"attention_bias", "sliding_window", "layer_types", "hidden_activation",
                       "final_logit_softcapping", "global_head_dim", "num_global_key_value_heads",
                       "attention_k_eq_v", "per_layer_config", "num_kv_shared_layers",
                       "use_double_wide_mlp", "use_bidirectional_attention"});
  return own;
}

/// Adds what LFM2's models have in common to what one of them has of its own.
Family lfm2(Family own) {
  own.vocab_size = 65536;
  own.kv_heads = 8;
  own.max_position = 128000;
  own.rms_norm_eps = 1e-5;
  own.rms_norm_eps_key = "norm_eps";
  own.tied_embeddings = true;
  own.bos = 1;
  own.eos = {2};
  own.rope_theta = 1e6;
  own.norms = {.before_attention = "operator_norm", .before_mlp = "ffn_norm"};
  own.names = {.attention_output = "out_proj",
               .q_norm = "q_layernorm",
               .k_norm = "k_layernorm",
               .mlp = "feed_forward.",
               .mlp_projections = {"w1", "w3", "w2"},
               .final_norm = "embedding_norm"};
  own.qk_norm = true;
  own.convolution_kernel = 3;
  own.own_keys.insert(own.own_keys.end(), {"norm_eps", "conv_L_cache", "conv_bias", "layer_types",
                                           "full_attn_idxs", "tie_embedding"});
  return own;
}

/// Adds what families with latent attention have in common to what one of them has of its own.
Family latent(Family own) {
  own.reads_attention_bias = true;
  own.rope_interleaved = true;
  own.mixture.shared_at = "mlp.shared_experts";
  own.mixture.reads_groups = true;
  own.draft_layer = {.projection = "eh_proj",
                     .embedding_norm = "enorm",
                     .state_norm = "hnorm",
                     .final_norm = "shared_head.norm"};
  own.own_keys.insert(own.own_keys.end(), {"attention_bias",
                                           "kv_lora_rank",
                                           "q_lora_rank",
                                           "qk_nope_head_dim",
                                           "qk_rope_head_dim",
                                           "v_head_dim",
                                           "qk_head_dim",
                                           "n_routed_experts",
                                           "num_experts_per_tok",
                                           "n_shared_experts",
                                           "moe_intermediate_size",
                                           "norm_topk_prob",
                                           "n_group",
                                           "topk_group",
                                           "routed_scaling_factor",
                                           "scoring_func",
                                           "topk_method",
                                           "first_k_dense_replace",
                                           "moe_layer_freq",
                                           "ep_size",
                                           "aux_loss_alpha",
                                           "seq_aux",
                                           "num_nextn_predict_layers"});
  return own;
}

}  // namespace

// Defaults are those of transformers 5: config classes of the same names.
std::span<const Family> families() {
  using Sliding = Family::Sliding;
  static const std::array<Family, 28> all = {{
      {.name = "llama",
       .vocab_size = 32000,
       .intermediate_size = 11008,
       .max_position = 2048,
       .bos = 1,
       .eos = {2},
       .reads_attention_bias = true,
       .reads_mlp_bias = true,
       .own_keys = {"attention_bias", "mlp_bias"}},
      {.name = "mistral",
       .vocab_size = 32000,
       .intermediate_size = 14336,
       .kv_heads = 8,
       .max_position = 131072,
       .bos = 1,
       .eos = {2},
       .sliding = Sliding::all_layers,
       .window = 4096,
       .own_keys = {"sliding_window"}},
      // Ministral 3. Its file is within that of a model that reads pictures, mistral3.
      {.name = "ministral3",
       .vocab_size = 131072,
       .intermediate_size = 14336,
       .layers = 34,
       .kv_heads = 8,
       .head_dim = 128,
       .max_position = 262144,
       .rms_norm_eps = 1e-5,
       .bos = 1,
       .eos = {2},
       .rope_parameters =
           R"({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "mscale": 1, "mscale_all_dim": 1,
               "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1})",
       .query_growth = true,
       .sliding = Sliding::all_layers,
       .own_keys = {"sliding_window"}},
      {.name = "qwen2",
       .vocab_size = 151936,
       .intermediate_size = 22016,
       .kv_heads = 32,
       .max_position = 32768,
       .always_qkv_bias = true,
       .sliding = Sliding::last_layers,
       .window = 4096,
       .own_keys = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}},
      {.name = "qwen3",
       .vocab_size = 151936,
       .intermediate_size = 22016,
       .kv_heads = 32,
       .head_dim = 128,
       .max_position = 32768,
       .reads_attention_bias = true,
       .sliding = Sliding::last_layers,
       .window = 4096,
       .qk_norm = true,
       .own_keys = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types",
                    "attention_bias"}},
      {.name = "mixtral",
       .vocab_size = 32000,
       .intermediate_size = 14336,
       .kv_heads = 8,
       .max_position = 131072,
       .rms_norm_eps = 1e-5,
       .bos = 1,
       .eos = {2},
       .rope_theta = 1e6,
       .sliding = Sliding::all_layers,
       .mixture = {.experts = 8,
                   .per_token = 2,
                   .router = "block_sparse_moe.gate",
                   .experts_at = "block_sparse_moe.experts",
                   .projections = {"w1", "w3", "w2"}},
       .own_keys = {"sliding_window", "num_local_experts", "num_experts_per_tok"}},
      // Qwen3-30B-A3B, -235B-A22B and the 2507 models. It normalises, and names, as qwen3 does.
      {.name = "qwen3_moe",
       .vocab_size = 151936,
       .hidden_size = 2048,
       .intermediate_size = 6144,
       .layers = 24,
       .kv_heads = 4,
       .max_position = 32768,
       .reads_attention_bias = true,
       .sliding = Sliding::all_if_on,
       .window = 4096,
       .qk_norm = true,
       .mixture = {.experts = 128,
                   .per_token = 8,
                   .intermediate_size = 768,
                   .reads_softmax = true,
                   .reads_layers = true},
       .own_keys = {"use_sliding_window", "sliding_window", "attention_bias", "num_experts",
                    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"},
       .class_name = "qwen3moe"},
      // gpt-oss-20b and -120b. experts_per_token and initial_context_length repeat other keys.
      {.name = "gpt_oss",
       .vocab_size = 201088,
       .hidden_size = 2880,
       .intermediate_size = 2880,
       .layers = 36,
       .q_heads = 64,
       .kv_heads = 8,
       .head_dim = 64,
       .max_position = 131072,
       .rms_norm_eps = 1e-5,
       .reads_attention_bias = true,
       .attention_bias = true,
       .rope_theta = 150000,
       .sliding = Sliding::pattern,
       .window = 128,
       .sliding_pattern = 2,
       .mixture = {.experts = 128, .per_token = 4, .router = "mlp.router", .fused = true},
       .attention_sinks = true,
       .clamped = true,
       .own_keys = {"sliding_window", "layer_types", "attention_bias", "num_local_experts",
                    "num_experts_per_tok", "experts_per_token", "initial_context_length",
                    "swiglu_limit"},
       .class_name = "gptoss"},
      // Phi-3, Phi-3.5 and Phi-4-mini. auto_map names this same network's code.
      {.name = "phi3",
       .vocab_size = 32064,
       .hidden_size = 3072,
       .intermediate_size = 8192,
       .max_position = 4096,
       .rms_norm_eps = 1e-5,
       .bos = 1,
       .eos = {32000},
       .partial_rotary = true,
       .original_max_position = 4096,
       .longrope_only = true,
       .sliding = Sliding::all_layers,
       .fused_qkv = true,
       .fused_gate_up = true,
       .own_keys = {"sliding_window", "auto_map"}},
      // GLM-4.
      {.name = "glm",
       .vocab_size = 151552,
       .intermediate_size = 13696,
       .layers = 40,
       .kv_heads = 2,
       .head_dim = 128,
       .max_position = 131072,
       .rms_norm_eps = 1.5625e-7,
       .eos = {151329, 151336, 151338},
       .reads_attention_bias = true,
       .attention_bias = true,
       .never_o_bias = true,
       .partial_rotary = true,
       .partial_rotary_factor = 0.5,
       .rope_interleaved = true,
       .fused_gate_up = true,
       .own_keys = {"attention_bias"}},
      // GLM-4-0414.
      {.name = "glm4",
       .vocab_size = 151552,
       .intermediate_size = 13696,
       .layers = 40,
       .kv_heads = 2,
       .head_dim = 128,
       .max_position = 131072,
       .rms_norm_eps = 1.5625e-7,
       .eos = {151329, 151336, 151338},
       .reads_attention_bias = true,
       .attention_bias = true,
       .never_o_bias = true,
       .partial_rotary = true,
       .partial_rotary_factor = 0.5,
       .rope_interleaved = true,
       .norms = {.after_attention = "post_self_attn_layernorm", .after_mlp = "post_mlp_layernorm"},
       .fused_gate_up = true,
       .own_keys = {"attention_bias"}},
      {.name = "olmo2",
       .vocab_size = 50304,
       .intermediate_size = 11008,
       .max_position = 2048,
       .rms_norm_eps = 1e-5,
       .eos = {50279},
       .reads_attention_bias = true,
       .norms = {.before_attention = "",
                 .after_attention = "post_attention_layernorm",
                 .before_mlp = "",
                 .after_mlp = "post_feedforward_layernorm"},
       .qk_norm = true,
       .qk_norm_whole = true,
       .own_keys = {"attention_bias"}},
      {.name = "smollm3",
       .vocab_size = 128256,
       .hidden_size = 2048,
       .intermediate_size = 11008,
       .layers = 36,
       .q_heads = 16,
       .kv_heads = 4,
       .max_position = 32768,
       .tied_embeddings = true,
       .bos = 128000,
       .eos = {128001},
       .reads_attention_bias = true,
       .reads_mlp_bias = true,
       .rope_theta = 2e6,
       .reads_no_rope_layers = true,
       .sliding = Sliding::no_rope,
       .own_keys = {"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval",
                    "use_sliding_window", "sliding_window", "layer_types"}},
      {.name = "gemma2",
       .vocab_size = 256000,
       .hidden_size = 2304,
       .intermediate_size = 9216,
       .layers = 26,
       .q_heads = 8,
       .kv_heads = 4,
       .head_dim = 256,
       .max_position = 8192,
       .tied_embeddings = true,
       .bos = 2,
       .eos = {1},
       .reads_attention_bias = true,
       .sliding = Sliding::pattern,
       .window = 4096,
       .sliding_pattern = 2,
       .norms = gemma_norms,
       .norm_offset = 1,
       .gelu = true,
       .scaled_embedding = true,
       .reads_query_scale = true,
       .attention_softcap = 50,
       .final_softcap = 30,
       .own_keys = {"attention_bias", "sliding_window", "layer_types", "hidden_activation",
                    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}},
      // The text model; it does not cap scores, whatever the file says.
      {.name = "gemma3_text",
       .vocab_size = 262208,
       .hidden_size = 2304,
       .intermediate_size = 9216,
       .layers = 26,
       .q_heads = 8,
       .kv_heads = 4,
       .head_dim = 256,
       .max_position = 131072,
       .tied_embeddings = true,
       .bos = 2,
       .eos = {1},
       .reads_attention_bias = true,
       .rope_theta = 1e6,
       .sliding_rope_theta = 1e4,
       .sliding = Sliding::pattern,
       .window = 4096,
       .sliding_pattern = 6,
       .reads_sliding_pattern = true,
       .norms = gemma_norms,
       .norm_offset = 1,
       .qk_norm = true,
       .gelu = true,
       .scaled_embedding = true,
       .reads_query_scale = true,
       .final_softcap = 0,
       .own_keys = {"attention_bias", "sliding_window", "sliding_window_pattern", "layer_types",
                    "hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping",
                    "rope_local_base_freq"},
       .class_name = "gemma3"},
      // The text model of Gemma 4: E2B, E4B, 31B and, with experts, 26B-A4B.
      gemma4({.name = "gemma4_text",
              .max_position = 131072,
              .window = 512,
              .layer_input_size = 256,
              .mixture = {.experts = 128,
                          .per_token = 8,
                          .intermediate_size = 704,
                          .router = "router.proj",
                          .experts_at = "experts",
                          .projections = {"gate_up_proj", "", "down_proj"},
                          .stacked = true,
                          .stacked_ending = "",
                          .switch_key = "enable_moe_block",
                          .per_token_key = "top_k_experts",
                          .own_norms = true},
              .own_keys = {"hidden_size_per_layer_input", "vocab_size_per_layer_input",
                           "enable_moe_block", "num_experts", "top_k_experts",
                           "moe_intermediate_size"},
              .class_name = "gemma4"}),
      // Gemma 4 12B, whose other parts project pictures and sound straight into the text model.
      gemma4({.name = "gemma4_unified_text",
              .max_position = 262144,
              .window = 1024,
              .class_name = "gemma4unified"}),
      // Qwen3.5, 3.6 and 3.8, the dense models. Positions of a text are those of RoPE without
      // sections for pictures.
      hybrid({.name = "qwen3_5",
              .vocab_size = 248320,
              .intermediate_size = 12288,
              .kv_heads = 4,
              .own_keys = {"mlp_only_layers"}}),
      // Qwen3.5-35B-A3B and the like.
      hybrid({.name = "qwen3_5_moe",
              .vocab_size = 248320,
              .hidden_size = 2048,
              .intermediate_size = 5632,
              .layers = 40,
              .kv_heads = 2,
              .mixture = {.experts = 256,
                          .per_token = 8,
                          .intermediate_size = 512,
                          .shared = 512,
                          .shared_gate = "mlp.shared_expert_gate"},
              .own_keys = {"mlp_only_layers", "num_experts", "num_experts_per_tok",
                           "moe_intermediate_size", "shared_expert_intermediate_size"}}),
      // Qwen3-Next-80B-A3B.
      hybrid({.name = "qwen3_next",
              .vocab_size = 151936,
              .hidden_size = 2048,
              .intermediate_size = 5632,
              .layers = 48,
              .kv_heads = 2,
              .fused_delta = true,
              .mixture = {.experts = 512,
                          .per_token = 10,
                          .intermediate_size = 512,
                          .reads_softmax = true,
                          .norm_topk_prob = true,
                          .shared = 512,
                          .shared_gate = "mlp.shared_expert_gate",
                          .reads_layers = true},
              .own_keys = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                           "shared_expert_intermediate_size", "norm_topk_prob",
                           "decoder_sparse_step", "mlp_only_layers"}}),
      // LFM2 and 2.5, the dense models: 350M, 700M, 1.2B, 2.6B. Published files have further block_
      // and conv_ keys of their making.
      lfm2({.name = "lfm2",
            .hidden_size = 2560,
            .intermediate_size = 12288,
            .adjusts_intermediate_size = true,
            .own_keys = {"block_ff_dim", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier",
                         "block_multiple_of", "block_dim", "block_mlp_init_scale", "block_norm_eps",
                         "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init",
                         "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads",
                         "use_pos_enc", "theta"}}),
      // LFM2 8B-A1B and 24B-A2B.
      lfm2({.name = "lfm2_moe",
            .hidden_size = 2048,
            .intermediate_size = 7168,
            .mixture = {.experts = 32,
                        .per_token = 4,
                        .intermediate_size = 1792,
                        .norm_topk_prob = true,
                        .sigmoid = true,
                        .least_sum = 1e-6,
                        .choice_bias = "feed_forward.expert_bias",
                        .choice_bias_key = "use_expert_bias",
                        .first_dense = 2,
                        .first_dense_key = "num_dense_layers",
                        .router = "feed_forward.gate",
                        .experts_at = "feed_forward.experts",
                        .projections = {"w1", "w3", "w2"}},
            .own_keys = {"moe_intermediate_size", "num_dense_layers", "num_experts",
                         "num_experts_per_tok", "use_expert_bias", "routed_scaling_factor",
                         "norm_topk_prob"}}),
      // Granite 3, and 4.0 where no layer is recurrent, in GGUF files.
      {.name = "granite",
       .vocab_size = 32000,
       .intermediate_size = 11008,
       .max_position = 2048,
       .bos = 1,
       .eos = {2},
       .reads_attention_bias = true,
       .reads_mlp_bias = true,
       .reads_multipliers = true,
       .own_keys = {"attention_bias", "mlp_bias", "embedding_multiplier", "attention_multiplier",
                    "residual_multiplier", "logits_scaling"}},
      // Granite 4.0 H, the dense models and the mixtures. The MLP of the first is the shared expert
      // of the second.
      {.name = "granitemoehybrid",
       .vocab_size = 32000,
       .intermediate_size = 1024,
       .mlp_size_key = "shared_intermediate_size",
       .max_position = 2048,
       .bos = 1,
       .eos = {2},
       .reads_attention_bias = true,
       .names = {.mlp = "shared_mlp.",
                 .mlp_projections = {"", "", "output_linear"},
                 .mlp_fused = "input_linear"},
       .mamba = {.sizes = {.heads = 128, .groups = 1, .state_dim = 256, .kernel = 4}},
       .reads_multipliers = true,
       .reads_position_type = true,
       .mixture = {.experts = 8,
                   .per_token = 2,
                   .intermediate_size = 11008,
                   .intermediate_size_key = "intermediate_size",
                   .shared = 1024,
                   .shared_size_key = "shared_intermediate_size",
                   .shared_at = "shared_mlp",
                   .router = "block_sparse_moe.router.layer",
                   .experts_at = "block_sparse_moe",
                   .projections = {"input_linear", "", "output_linear"},
                   .stacked = true,
                   .shared_is_mlp = true},
       .fused_gate_up = true,
       .own_keys = {"attention_bias",
                    "layer_types",
                    "embedding_multiplier",
                    "attention_multiplier",
                    "residual_multiplier",
                    "logits_scaling",
                    "num_local_experts",
                    "num_experts_per_tok",
                    "shared_intermediate_size",
                    "position_embedding_type",
                    "mamba_n_heads",
                    "mamba_n_groups",
                    "mamba_d_state",
                    "mamba_d_head",
                    "mamba_d_conv",
                    "mamba_expand",
                    "mamba_chunk_size",
                    "mamba_conv_bias",
                    "mamba_proj_bias",
                    "time_step_limit",
                    "init_method",
                    "normalization_function"}},
      // Nemotron-H and Nemotron Nano 2, whose MLPs are dense, and Nemotron 3 Nano, which has
      // mixtures.
      {.name = "nemotron_h",
       .vocab_size = 131072,
       .intermediate_size = 21504,
       .kv_heads = 8,
       .head_dim = 128,
       .max_position = 4096,
       .rms_norm_eps = 1e-5,
       .rms_norm_eps_key = "layer_norm_epsilon",
       .bos = 1,
       .eos = {2},
       .reads_mlp_bias = true,
       .norms = {.before_attention = "norm", .before_mlp = "norm"},
       .names = {.attention = "mixer.", .mlp = "mixer.", .final_norm = "norm_f"},
       .mamba =
           {.sizes = {.heads = 128, .head_dim = 64, .groups = 8, .state_dim = 128, .kernel = 4},
            .heads = "mamba_num_heads",
            .head_dim = "mamba_head_dim",
            .groups = "n_groups",
            .state_dim = "ssm_state_size",
            .kernel = "conv_kernel",
            .bias = "use_conv_bias",
            .at = "mixer."},
       .parts_apart = true,
       .relu_squared = true,
       .never_rope = true,
       .mixture = {.experts = 8,
                   .per_token = 2,
                   .intermediate_size = 7688,
                   .norm_topk_prob = true,
                   .shared = 7688,
                   .shared_size_key = "moe_shared_expert_intermediate_size",
                   .shared_at = "mixer.shared_experts",
                   .sigmoid = true,
                   .reads_groups = true,
                   .choice_bias = "mixer.gate.e_score_correction_bias",
                   .router = "mixer.gate",
                   .experts_at = "mixer.experts",
                   .projections = {"", "up_proj", "down_proj"}},
       // auto_map names this same network's code, which does not read norm_eps either.
       .own_keys = {"auto_map",
                    "norm_eps",
                    "layer_norm_epsilon",
                    "layers_block_type",
                    "layer_types",
                    "hybrid_override_pattern",
                    "mlp_hidden_act",
                    "mlp_bias",
                    "attention_bias",
                    "attention_head_dim",
                    "mamba_num_heads",
                    "mamba_head_dim",
                    "mamba_hidden_act",
                    "mamba_proj_bias",
                    "mamba_ssm_cache_dtype",
                    "n_groups",
                    "ssm_state_size",
                    "conv_kernel",
                    "expand",
                    "use_conv_bias",
                    "use_bias",
                    "use_mamba_kernels",
                    "chunk_size",
                    "time_step_limit",
                    "time_step_min",
                    "time_step_max",
                    "time_step_floor",
                    "time_step_rank",
                    "num_logits_to_keep",
                    "rescale_prenorm_residual",
                    "residual_in_fp32",
                    "n_routed_experts",
                    "n_shared_experts",
                    "num_experts_per_tok",
                    "moe_intermediate_size",
                    "moe_shared_expert_intermediate_size",
                    "moe_shared_expert_overlap",
                    "moe_latent_size",
                    "routed_scaling_factor",
                    "norm_topk_prob",
                    "n_group",
                    "topk_group",
                    "mtp_layers_block_type",
                    "num_nextn_predict_layers"},
       .class_name = "nemotronh"},
      // DeepSeek-V2, V2-Lite.
      latent(
          {.name = "deepseek_v2",
           .vocab_size = 102400,
           .intermediate_size = 11008,
           .max_position = 2048,
           .bos = 1,
           .eos = {2},
           .latent =
               {.kv_rank = 512, .q_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128},
           .mixture =
               {.experts = 64, .intermediate_size = 1407, .shared_experts = 2, .first_dense = 0},
           .own_keys = {"mlp_bias"}}),
      // DeepSeek-V3, R1 and V3.1.
      latent(
          {.name = "deepseek_v3",
           .vocab_size = 129280,
           .hidden_size = 7168,
           .intermediate_size = 18432,
           .layers = 61,
           .q_heads = 128,
           .max_position = 4096,
           .bos = 0,
           .eos = {1},
           .latent =
               {.kv_rank = 512, .q_rank = 1536, .nope_dim = 128, .rope_dim = 64, .value_dim = 128},
           .mixture = {.experts = 256,
                       .per_token = 8,
                       .intermediate_size = 2048,
                       .norm_topk_prob = true,
                       .shared_experts = 1,
                       .sigmoid = true,
                       .groups = 8,
                       .chosen_groups = 4,
                       .scale = 2.5,
                       .first_dense = 3},
           .own_keys = {"rope_interleave"}}),
      // GLM-4.7-Flash.
      latent(
          {.name = "glm4_moe_lite",
           .vocab_size = 154880,
           .hidden_size = 2048,
           .intermediate_size = 10240,
           .layers = 47,
           .q_heads = 20,
           .max_position = 202752,
           .rms_norm_eps = 1e-5,
           .bos = 0,
           .eos = {1},
           .latent =
               {.kv_rank = 512, .q_rank = 768, .nope_dim = 192, .rope_dim = 64, .value_dim = 256},
           .mixture = {.experts = 64,
                       .per_token = 4,
                       .intermediate_size = 1536,
                       .norm_topk_prob = true,
                       .shared_experts = 1,
                       .sigmoid = true,
                       .scale = 1.8,
                       .first_dense = 1},
           .own_keys = {"rope_interleave", "mlp_layer_types"}}),
  }};
  return all;
}

const Family* find_family(std::string_view model_type) {
  const auto all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family& f) {
    return f.name == model_type ||
           (model_type.starts_with(f.name) && model_type.substr(f.name.size()) == "_text");
  });
  return found == all.end() ? nullptr : &*found;
}

const Family& family_of(const ModelConfig& config) { return *find_family(config.model_type); }

}  // namespace topkv
