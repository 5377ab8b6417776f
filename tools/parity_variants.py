"""The checkpoints of tests/fixtures/parity: one family and one set of features each.

See make_parity_fixtures.py, which makes them.
"""

import torch

VOCAB = 97
EOS = 2
BASE = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, hidden_size=48,
            intermediate_size=80, num_hidden_layers=2, max_position_embeddings=256,
            rms_norm_eps=1e-5, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)


def theta(value):
    return dict(rope_type="default", rope_theta=value)


# "old": config.json as written before transformers 5 (rope_theta, rope_scaling, torch_dtype).
# "drop": keys that checkpoints of that time leave to their defaults.
# "of": the variant whose checkpoint this is, over tokens of its own.
# "length": the length that the model is loaded for. transformers grows dynamic NTK's theta with the
# longest text that it has seen, so it sees one of that length first.
VARIANTS = {
    "llama2": dict(model_type="llama", tokens=64, dtype=torch.float16, old=True,
                   drop=["num_key_value_heads", "head_dim", "rope_theta", "attention_bias",
                         "mlp_bias"],
                   num_attention_heads=6, num_key_value_heads=6, rope_parameters=theta(10000.0)),
    "llama3": dict(model_type="llama", tokens=96, dtype=torch.bfloat16, old=True,
                   drop=["head_dim"], eos_token_id=[2, 3],
                   num_attention_heads=3, num_key_value_heads=1, rope_parameters=LLAMA3),
    "llama3-head80": dict(model_type="llama", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=80,
                          intermediate_size=48,
                          rope_parameters=LLAMA3 | dict(factor=32.0, rope_theta=10000.0)),
    "llama-linear": dict(model_type="llama", tokens=64, dtype=torch.float32, old=True,
                         type_key=True, hidden_size=32, intermediate_size=40, num_attention_heads=4,
                         num_key_value_heads=2,
                         rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama-tied-bias": dict(model_type="llama", tokens=64, dtype=torch.bfloat16,
                            tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=24,
                            rope_parameters=theta(100000.0)),
    "mistral-window": dict(model_type="mistral", tokens=80, dtype=torch.bfloat16,
                           sliding_window=24, num_attention_heads=6, num_key_value_heads=2,
                           head_dim=16, rope_parameters=theta(10000.0)),
    # A sliding_window that use_sliding_window=false switches off, as Qwen2.5 checkpoints have it.
    "qwen2": dict(model_type="qwen2", tokens=64, dtype=torch.bfloat16, old=True, shard="60KB",
                  drop=["layer_types"], sliding_window=16, use_sliding_window=False,
                  max_window_layers=1, num_attention_heads=4, num_key_value_heads=2,
                  rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen2-window": dict(model_type="qwen2", tokens=64, dtype=torch.bfloat16, old=True,
                         drop=["layer_types"], num_hidden_layers=3, sliding_window=20,
                         use_sliding_window=True, max_window_layers=1, hidden_size=32,
                         intermediate_size=48, num_attention_heads=4, num_key_value_heads=1,
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen3": dict(model_type="qwen3", tokens=64, dtype=torch.bfloat16, tie_word_embeddings=True,
                  hidden_size=40, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                  rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    # Windowed layers named one by one.
    "qwen3-window": dict(model_type="qwen3", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                         intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, sliding_window=16,
                         use_sliding_window=True, max_window_layers=3,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    # The head dims that a CUDA device knows, besides 80.
    "llama-bias-head64": dict(model_type="llama", tokens=96, dtype=torch.bfloat16,
                              attention_bias=True, mlp_bias=True, num_attention_heads=6,
                              num_key_value_heads=2, head_dim=64,
                              rope_parameters=theta(100000.0)),
    "qwen2-head96": dict(model_type="qwen2", tokens=80, dtype=torch.bfloat16, hidden_size=96,
                         num_attention_heads=1, num_key_value_heads=1, use_sliding_window=False,
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen3-head128": dict(model_type="qwen3", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                          tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=128, rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "mistral-window-head256": dict(model_type="mistral", tokens=80, dtype=torch.bfloat16,
                                   hidden_size=32, sliding_window=24, num_attention_heads=2,
                                   num_key_value_heads=1, head_dim=256,
                                   rope_parameters=theta(10000.0)),
    # Scalings of RoPE, over texts that go beyond the original length, and within it.
    "qwen2-yarn": dict(model_type="qwen2", tokens=96, dtype=torch.bfloat16, old=True, type_key=True,
                       drop=["layer_types"], hidden_size=32, intermediate_size=48,
                       num_attention_heads=2, num_key_value_heads=1, use_sliding_window=False,
                       max_position_embeddings=32, rms_norm_eps=1e-6,
                       rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                            original_max_position_embeddings=32)),
    "llama-yarn-mscale": dict(model_type="llama", tokens=96, dtype=torch.bfloat16, hidden_size=32,
                              intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                              head_dim=32,
                              rope_parameters=dict(
                                  rope_type="yarn", rope_theta=1000.0, factor=8.0,
                                  original_max_position_embeddings=32, mscale=1.4,
                                  mscale_all_dim=0.3, beta_fast=6, beta_slow=0.5, truncate=False)),
    "llama-dynamic": dict(model_type="llama", tokens=80, length=96, dtype=torch.bfloat16,
                          hidden_size=32, intermediate_size=48, num_attention_heads=2,
                          num_key_value_heads=1, max_position_embeddings=32,
                          rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=4.0)),
    "llama-dynamic-short": dict(of="llama-dynamic", tokens=16, length=32),
    "llama-longrope": dict(model_type="llama", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                           intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                           max_position_embeddings=128,
                           rope_parameters=dict(
                               rope_type="longrope", rope_theta=100.0,
                               original_max_position_embeddings=32,
                               short_factor=[1.0, 1.1, 1.2, 1.4, 1.5, 1.5, 1.7, 2.0],
                               long_factor=[1.0, 1.5, 2.5, 4.0, 5.5, 6.5, 8.0, 9.0])),
    "llama-longrope-short": dict(of="llama-longrope", tokens=16, length=32),
    # As Phi-4-mini: fused projections, part of the head turned, LongRoPE; and as Phi-3-mini.
    "phi3": dict(model_type="phi3", tokens=80, dtype=torch.bfloat16, old=True,
                 hidden_size=64, intermediate_size=48, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True, partial_rotary_factor=0.75,
                 max_position_embeddings=128, original_max_position_embeddings=32, pad_token_id=0,
                 rope_parameters=dict(rope_type="longrope", rope_theta=100.0,
                                      partial_rotary_factor=0.75,
                                      short_factor=[1.0, 1.1, 1.2, 1.4, 1.5, 2.0],
                                      long_factor=[1.0, 2.5, 4.0, 5.5, 8.0, 9.0])),
    "phi3-short": dict(of="phi3", tokens=16, length=32),
    "phi3-window": dict(model_type="phi3", tokens=64, dtype=torch.bfloat16, old=True,
                        hidden_size=48, intermediate_size=40, num_attention_heads=3,
                        num_key_value_heads=3, sliding_window=20, pad_token_id=0,
                        rope_parameters=theta(10000.0) | dict(partial_rotary_factor=1.0)),
    # The head turned in part, in pairs of neighbours.
    "glm": dict(model_type="glm", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                pad_token_id=0, rope_parameters=theta(100.0) | dict(partial_rotary_factor=0.5)),
    # The same in an older file, and norms of what each part of a layer gives.
    "glm4": dict(model_type="glm4", tokens=64, dtype=torch.bfloat16, old=True, hidden_size=32,
                 intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
                 pad_token_id=0, rope_parameters=theta(100.0) | dict(partial_rotary_factor=0.5)),
    "olmo2": dict(model_type="olmo2", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                  intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                  attention_bias=True, rope_parameters=theta(500000.0)),
    # Each second layer without RoPE.
    "smollm3": dict(model_type="smollm3", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                    intermediate_size=40, num_hidden_layers=4, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=64, tie_word_embeddings=True,
                    no_rope_layer_interval=2, pad_token_id=0, rope_parameters=theta(2000000.0)),
    # Softcaps small enough to matter with weights like these.
    "gemma2": dict(model_type="gemma2", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                   intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                   tie_word_embeddings=True, sliding_window=16, query_pre_attn_scalar=8,
                   attn_logit_softcapping=3.0, final_logit_softcapping=2.0, pad_token_id=0,
                   rope_parameters=theta(10000.0)),
    # Windowed layers with a theta of their own; the others' RoPE is stretched.
    "gemma3": dict(model_type="gemma3_text", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                   intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=64, tie_word_embeddings=True, sliding_window=16,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                   query_pre_attn_scalar=128, pad_token_id=0,
                   rope_parameters=dict(
                       sliding_attention=theta(20.0),
                       full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0))),
    "phi3-head64": dict(model_type="phi3", tokens=80, dtype=torch.bfloat16, hidden_size=128,
                        intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, tie_word_embeddings=True,
                        max_position_embeddings=128, original_max_position_embeddings=32,
                        pad_token_id=0,
                        rope_parameters=dict(rope_type="longrope", rope_theta=1000.0,
                                             partial_rotary_factor=0.75,
                                             short_factor=[1 + 0.05 * i for i in range(24)],
                                             long_factor=[1 + 0.4 * i for i in range(24)])),
    # Dual chunk attention: chunks of 10 tokens, where no query is held nearer and scores grow with the
    # text, and of 16, where some are.
    "qwen2-chunks": dict(model_type="qwen2", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                         intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0),
                         dual_chunk_attention_config=dict(
                             chunk_size=24, local_size=14, original_max_position_embeddings=20)),
    "qwen3-chunks": dict(model_type="qwen3", tokens=80, dtype=torch.bfloat16,
                         tie_word_embeddings=True, hidden_size=40, num_attention_heads=3,
                         num_key_value_heads=1, head_dim=64, intermediate_size=48,
                         rope_parameters=theta(1000000.0),
                         dual_chunk_attention_config=dict(chunk_size=24, local_size=8)),
    # Mixtures of experts: a dense layer among them, and weights that do not add up to 1 (in each second
    # layer), with a window.
    "qwen3-moe": dict(model_type="qwen3_moe", tokens=32, dtype=torch.bfloat16, hidden_size=32,
                      intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=64, moe_intermediate_size=32, num_experts=6,
                      num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1],
                      rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen3-moe-window": dict(model_type="qwen3_moe", tokens=32, dtype=torch.bfloat16, hidden_size=40,
                             intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                             head_dim=64, moe_intermediate_size=24, num_experts=8,
                             num_experts_per_tok=3, decoder_sparse_step=2, use_sliding_window=True,
                             sliding_window=12, attention_bias=True, tie_word_embeddings=True,
                             rms_norm_eps=1e-6, rope_parameters=theta(10000.0)),
    "qwen3-moe-chunks": dict(model_type="qwen3_moe", tokens=48, dtype=torch.bfloat16, hidden_size=32,
                             intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                             num_key_value_heads=1, head_dim=64, moe_intermediate_size=32,
                             num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                             tie_word_embeddings=True, rope_parameters=theta(1000000.0),
                             dual_chunk_attention_config=dict(chunk_size=24, local_size=8)),
    "mixtral": dict(model_type="mixtral", tokens=32, dtype=torch.bfloat16, old=True, hidden_size=32,
                    intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
                    num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
                    rope_parameters=theta(1000000.0)),
    # As gpt-oss: sinks, biases everywhere, windows in each second layer, YaRN between whole pairs.
    "gpt-oss": dict(model_type="gpt_oss", tokens=32, dtype=torch.bfloat16, hidden_size=40,
                    intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                    num_local_experts=4, num_experts_per_tok=2, sliding_window=12,
                    tie_word_embeddings=True, max_position_embeddings=64,
                    rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                         original_max_position_embeddings=16, beta_fast=4.0,
                                         beta_slow=1.0, truncate=False)),
    # As Qwen3.5: Gated DeltaNet layers, gated attention, a quarter of a head turned.
    "qwen3-5": dict(model_type="qwen3_5_text", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                    intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=64, linear_num_key_heads=2,
                    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=20,
                    layer_types=["linear_attention", "linear_attention", "full_attention",
                                 "linear_attention"],
                    rms_norm_eps=1e-6,
                    rope_parameters=theta(100000.0) | dict(partial_rotary_factor=0.25,
                                                           mrope_section=[3, 3, 2],
                                                           mrope_interleaved=True)),
}
