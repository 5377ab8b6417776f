// Keys of config.json that are not read: which of them are harmless, told or refused. The files are
// those that checkpoints on Hugging Face came with.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

struct File {
  const char* model;
  std::int64_t reach;
  const char* text;
};

const File files[] = {
    {"Qwen2.5-7B-Instruct-1M", 1010000, R"({"architectures": ["Qwen2ForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
      "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
      "intermediate_size": 18944, "max_position_embeddings": 1010000, "max_window_layers": 28,
      "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 10000000.0, "sliding_window": 1010000, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.48.1", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 152064,
      "dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192,
        "original_max_position_embeddings": 262144}})"},
    {"Llama-2-7b", 4096, R"({"_name_or_path": "meta-llama/Llama-2-7b-hf",
      "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
      "use_cache": true, "vocab_size": 32000})"},
    {"llama-7b, the first conversion", 2048, R"({"architectures": ["LLaMAForCausalLM"],
      "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 11008, "initializer_range": 0.02, "max_sequence_length": 2048,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": -1,
      "rms_norm_eps": 1e-06, "torch_dtype": "float16", "transformers_version": "4.27.0.dev0",
      "use_cache": true, "vocab_size": 32000})"},
    {"vicuna-7b-v1.5-16k", 16384, R"({"_name_or_path": "vicuna-7b-v1.5-16k",
      "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "max_sequence_length": 16384,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 4.0, "type": "linear"}, "tie_word_embeddings": false,
      "torch_dtype": "float16", "transformers_version": "4.31.0", "use_cache": true,
      "vocab_size": 32000})"},
    {"Llama-3.1-8B-Instruct", 131072, R"({"architectures": ["LlamaForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
      "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
      "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})"},
    {"Llama-3.2-1B, of unsloth", 131072, R"({"_name_or_path": "unsloth/Llama-3.2-1B",
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
      "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
      "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
      "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "pad_token_id": 128004, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.45.0", "unsloth_fixed": true, "unsloth_version": "2024.9.post4",
      "use_cache": true, "vocab_size": 128256})"},
    {"SmolLM2-135M-Instruct", 8192, R"({"architectures": ["LlamaForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
      "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192,
      "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
      "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
      "use_cache": true, "vocab_size": 49152})"},
    {"Mistral-7B-v0.1", 32768, R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
      "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})"},
    {"Mistral-Nemo-Base-2407", 128000, R"({"architectures": ["MistralForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
      "intermediate_size": 14336, "max_position_embeddings": 128000, "model_type": "mistral",
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 131072})"},
    {"granite-4.0-h-micro", 131072, R"({"architectures": ["GraniteMoeHybridForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "attention_multiplier": 0.015625,
      "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
      "hidden_act": "silu", "hidden_size": 2048, "init_method": "mup", "initializer_range": 0.1,
      "intermediate_size": 8192, "layer_types": ["mamba", "mamba", "attention", "mamba"],
      "logits_scaling": 8, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
      "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1,
      "mamba_n_heads": 64, "mamba_proj_bias": false, "max_position_embeddings": 131072,
      "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
      "num_attention_heads": 32, "num_experts_per_tok": 0, "num_hidden_layers": 4,
      "num_key_value_heads": 8, "num_local_experts": 0, "output_router_logits": false,
      "pad_token_id": 100256, "position_embedding_type": "nope", "residual_multiplier": 0.22,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000,
      "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "use_cache": true,
      "vocab_size": 100352})"},
    {"NVIDIA-Nemotron-Nano-9B-v2, without its code", 131072, R"({
      "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 12, "expand": 2,
      "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 4480,
      "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
      "initializer_range": 0.02, "intermediate_size": 15680, "layer_norm_epsilon": 1e-05,
      "mamba_head_dim": 80, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
      "mamba_proj_bias": false, "max_position_embeddings": 131072, "mlp_bias": false,
      "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
      "num_attention_heads": 40, "num_hidden_layers": 56, "num_key_value_heads": 8,
      "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": true,
      "residual_in_fp32": false, "rms_norm_eps": 1e-05, "sliding_window": null,
      "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
      "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
      "time_step_min": 0.001, "torch_dtype": "bfloat16", "transformers_version": "4.51.3",
      "use_bias": false, "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true,
      "vocab_size": 131072})"},
    {"NVIDIA-Nemotron-3-Nano-30B-A3B", 262144, R"({
      "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig",
        "AutoModel": "modeling_nemotron_h.NemotronHForCausalLM",
        "AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM"},
      "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
      "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
      "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
      "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05,
      "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
      "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
      "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
      "model_type": "nemotron_h", "moe_intermediate_size": 1856,
      "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
      "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
      "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52,
      "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
      "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
      "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
      "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16",
      "transformers_version": "4.55.4", "use_bias": false, "use_cache": true,
      "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})"},
    {"like LFM2-8B-A1B", 128000, R"({"architectures": ["Lfm2MoeForCausalLM"], "bos_token_id": 1,
      "conv_L_cache": 3, "conv_bias": false, "dtype": "bfloat16", "eos_token_id": 7,
      "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7168,
      "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention",
        "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv",
        "conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "conv"],
      "max_position_embeddings": 128000, "model_type": "lfm2_moe", "moe_intermediate_size": 1792,
      "norm_eps": 1e-05, "norm_topk_prob": true, "num_attention_heads": 32, "num_dense_layers": 2,
      "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24,
      "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
      "routed_scaling_factor": 1.0, "transformers_version": "4.57.0.dev0", "use_cache": true,
      "use_expert_bias": true, "vocab_size": 65536})"},
    {"LFM2-1.2B", 128000, R"({"architectures": ["Lfm2ForCausalLM"],
      "block_auto_adjust_ff_dim": true, "block_dim": 2048, "block_ff_dim": 12288,
      "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256,
      "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": true,
      "block_use_xavier_init": true, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": false,
      "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": true, "eos_token_id": 7,
      "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
      "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
      "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16,
      "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
      "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": true,
      "use_pos_enc": true, "vocab_size": 65536})"},
    {"Gemma 4 31B, within a model that reads pictures", 262144, R"({
      "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": null,
      "boi_token_id": 255999, "dtype": "bfloat16", "eos_token_id": [1, 106],
      "image_token_id": 258880, "model_type": "gemma4",
      "text_config": {"attention_bias": false, "attention_dropout": 0.0, "attention_k_eq_v": true,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": false, "eos_token_id": 1,
        "expert_intermediate_size": null, "final_logit_softcapping": 30.0, "global_head_dim": 512,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376,
        "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "intermediate_size": 21504,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
          "sliding_attention", "sliding_attention", "full_attention"],
        "max_position_embeddings": 262144, "model_type": "gemma4_text",
        "moe_intermediate_size": null, "num_attention_heads": 32, "num_experts": null,
        "num_global_key_value_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 16,
        "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": {
          "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
            "rope_type": "proportional"},
          "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": null,
        "use_bidirectional_attention": "vision", "use_cache": true, "use_double_wide_mlp": false,
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
      "tie_word_embeddings": true, "vision_config": {"model_type": "gemma4_vision"}})"},
    {"Ministral 3 8B, within a model that reads pictures", 262144, R"({
      "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16",
      "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": false,
      "projector_hidden_act": "gelu", "spatial_merge_size": 2, "tie_word_embeddings": false,
      "quantization_config": {"activation_scheme": "static", "dequantize": false,
        "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        "quant_method": "fp8", "weight_block_size": null},
      "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
        "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
          "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
          "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn",
          "type": "yarn"},
        "sliding_window": null, "tie_word_embeddings": false, "use_cache": true,
        "vocab_size": 131072},
      "vision_config": {"head_dim": 64, "hidden_size": 1024, "model_type": "pixtral"}})"},
    {"Qwen2-7B-Instruct", 32768, R"({"architectures": ["Qwen2ForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
      "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
      "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
      "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.41.2", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 152064})"},
    {"DeepSeek-R1-Distill-Qwen-1.5B", 131072, R"({"architectures": ["Qwen2ForCausalLM"],
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
      "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02,
      "intermediate_size": 8960, "max_position_embeddings": 131072, "max_window_layers": 21,
      "model_type": "qwen2", "num_attention_heads": 12, "num_hidden_layers": 28,
      "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000, "sliding_window": 4096,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.44.0",
      "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen3-8B", 40960, R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
      "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936})"},
    {"Qwen3, written by transformers 5", 40960, R"({"architectures": ["Qwen3ForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
      "chunk_size_feed_forward": 0, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 1024, "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
      "initializer_range": 0.02, "intermediate_size": 3072, "is_encoder_decoder": false,
      "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "layer_types": ["full_attention",
      "full_attention"], "max_position_embeddings": 40960, "max_window_layers": 28,
      "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 2,
      "num_key_value_heads": 8, "output_attentions": false, "output_hidden_states": false,
      "pad_token_id": null, "problem_type": null, "return_dict": true, "rms_norm_eps": 1e-06,
      "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "sliding_window": null,
      "tie_word_embeddings": true, "transformers_version": "5.17.0", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen2.5 turned into a Llama", 32768, R"({"architectures": ["LlamaForCausalLM"],
      "attention_bias": true, "mlp_bias": false, "model_type": "llama", "hidden_size": 896,
      "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
      "num_key_value_heads": 2, "max_position_embeddings": 32768, "max_window_layers": 24,
      "sliding_window": 32768, "use_sliding_window": false, "rope_theta": 1000000.0,
      "_attn_implementation_autoset": true, "vocab_size": 151936})"}};

class ConfigKeys : public testing::Test {
 protected:
  ModelConfig load(const Json& config) {
    temp_.write("config.json", config.dump());
    return ModelConfig::load(temp_.path());
  }
  std::string file() const { return (temp_.path() / "config.json").string(); }

  TempDirectory temp_;
};

Json config_of(const char* type, const Json& changes) {
  Json config = {{"model_type", type},       {"vocab_size", 100},
                 {"hidden_size", 64},        {"intermediate_size", 128},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 8},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 4096}};
  config.update(changes);
  return config;
}

TEST_F(ConfigKeys, FilesOfRealCheckpointsAreReadWithoutAWord) {
  for (const File& file : files) {
    SCOPED_TRACE(file.model);
    const ModelConfig config = load(Json::parse(file.text));
    EXPECT_EQ(config.warnings, std::vector<std::string>());
    EXPECT_EQ(config.reach(), file.reach);
  }
}

TEST_F(ConfigKeys, KeysOfOtherNetworksAreRefusedUnlessTheySayNothing) {
  const std::vector<std::pair<const char*, Json>> keys = {
      {"compression_config", {{"format", "int-quantized"}}},
      {"quantization", {{"bits", 4}, {"group_size", 64}}},
      {"moe_num_experts", 8},
      {"pruned_heads", {{"1", {0, 2}}}},
      {"rope_interleaved", true},
      {"use_mrope", true},
      {"rotary_pct", 0.25},
      {"alibi", true},
      {"use_logn_attn", true},
      {"logit_scale", 0.0625},
      {"logits_scaling", 8},
      {"embedding_multiplier", 12},
      {"residual_multiplier", 0.22},
      {"attention_multiplier", 0.0078125},
      {"final_logit_softcapping", 30.0},
      {"attn_logit_softcapping", 50.0},
      {"clip_qkv", 8},
      {"attention_chunk_size", 8192},
      {"no_rope_layers", {1, 1, 1, 0}},
      {"use_parallel_residual", true},
      {"is_encoder_decoder", true},
      {"add_cross_attention", true}};
  for (const auto& [key, value] : keys) {
    SCOPED_TRACE(key);
    expect_error<Unsupported>(
        [&, key = key, value = value] {
          load(config_of("llama", {{key, value}}));
        },
        file() + ": ", {std::string(key) + " is ", "topkv runs"});
    for (const Json& nothing : {Json(nullptr), Json(false), Json(0), Json("")}) {
      EXPECT_TRUE(load(config_of("llama", {{key, nothing}})).warnings.empty()) << nothing;
    }
  }
  for (const char* scale : {"logit_scale", "residual_multiplier", "rotary_pct"}) {
    EXPECT_TRUE(load(config_of("llama", {{scale, 1.0}})).warnings.empty()) << scale;
  }
}

TEST_F(ConfigKeys, UnknownKeysThatSaySomethingAreTold) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"attention_magic", 3}}, "attention_magic is 3"},
      {{{"rope_style", "spiral"}}, "rope_style is \"spiral\""},
      {{{"hc_config", {{"a", 1}}}}, "hc_config is {\"a\":1}"},
      {{{"auto_map", {{"AutoModelForCausalLM", "modeling_x.XForCausalLM"}}}}, "auto_map is"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "architectures is"},
      {{{"architectures", {"MiniCPMForCausalLM"}}}, "architectures is"},
      {{{"sliding_window", 1024}}, "sliding_window is 1024"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types is"},
      {{{"line\nbreak\xC3\xA9", 1}}, R"("line\nbreak\u00e9" is 1)"},
      {{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"attention_factor", 0.5}}}},
       "rope_scaling.attention_factor is 0.5"},
      {{{"rope_scaling", {{"rope_type", "default"}, {"type", "yarn"}}}},
       "rope_scaling.type is \"yarn\""},
      {{{"rope_parameters", {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}}},
       "rope_parameters.mrope_section is [16,24,24]"},
      {{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}},
        {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}},
       "rope_parameters is {"}};
  for (const auto& [changes, says] : cases) {
    SCOPED_TRACE(changes.dump());
    const ModelConfig config = load(config_of("llama", changes));
    ASSERT_EQ(config.warnings.size(), 1U);
    const std::string& warning = config.warnings.front();
    EXPECT_TRUE(warning.starts_with(file() + ": " + says)) << warning;
    EXPECT_EQ(warning.find('\n'), std::string::npos) << warning;
  }
  EXPECT_EQ(load(config_of("mistral", {{"attention_bias", true}})).warnings.size(), 1U);
  EXPECT_EQ(load(config_of("qwen2", {{"attention_bias", true}})).warnings.size(), 1U);
  EXPECT_TRUE(load(config_of("qwen3", {{"attention_bias", true}})).warnings.empty());
}

TEST_F(ConfigKeys, UnknownKeysThatSayNothingAreNotTold) {
  for (const Json& value :
       {Json(nullptr), Json(false), Json(0), Json(0.0), Json(""), Json::array(), Json::object()}) {
    EXPECT_TRUE(load(config_of("llama", {{"attention_magic", value}})).warnings.empty()) << value;
  }
}

TEST_F(ConfigKeys, ManyUnknownKeysMakeOneShortWarning) {
  Json many = Json::object();
  for (int i = 0; i < 5000; ++i) many["unknown" + std::to_string(i)] = std::string(1000, 'x');
  const ModelConfig config = load(config_of("llama", many));
  ASSERT_EQ(config.warnings.size(), 1U);
  EXPECT_NE(config.warnings.front().find("and 4994 more"), std::string::npos);
  EXPECT_LT(config.warnings.front().size(), 2000U);
}

TEST_F(ConfigKeys, ReachFollowsALinearScalingAndNoOther) {
  const auto reach = [&](const Json& changes) { return load(config_of("llama", changes)).reach(); };
  const auto scaling = [](const char* type, double factor) {
    return Json{
        {"rope_type", type}, {"factor", factor}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  };
  EXPECT_EQ(reach(Json::object()), 4096);
  EXPECT_EQ(reach({{"rope_scaling", scaling("llama3", 8)}}), 4096);
  EXPECT_EQ(reach({{"rope_scaling", scaling("linear", 4)}}), 16384);
  EXPECT_EQ(reach({{"rope_scaling", scaling("linear", 0.5)}}), 4096);
  Json from_1024 = scaling("linear", 8);
  from_1024["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(reach({{"rope_parameters", from_1024}}), 8192);
}

TEST_F(ConfigKeys, BeyondTheReachIsToldWithBothNumbers) {
  const ModelConfig config = load(config_of("llama", Json::object()));
  EXPECT_EQ(config.beyond_reach(0), "");
  EXPECT_EQ(config.beyond_reach(4096), "");
  const std::string warning = config.beyond_reach(10153);
  EXPECT_NE(warning.find("10153"), std::string::npos) << warning;
  EXPECT_NE(warning.find("4096"), std::string::npos) << warning;
}

TEST_F(ConfigKeys, LengthAScalingStartsFromIsTakenFromTheTopLevelFirst) {
  // As transformers 5.17 does; its frequencies for 128 are those of a file with 128 inside.
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 1024}};
  const Json both = {{"rope_scaling", llama3}, {"original_max_position_embeddings", 128}};
  EXPECT_EQ(load(config_of("llama", both)).rope_scaling.original_max_position, 128);
  EXPECT_EQ(load(config_of("llama", {{"rope_scaling", llama3}})).rope_scaling.original_max_position,
            1024);
}

}  // namespace
}  // namespace topkv
