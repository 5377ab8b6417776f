"""What GGUF files of Gemma 4 say, as llama.cpp's converter writes it; see make_gguf_fixtures.py."""

import numpy as np


def write_metadata(writer, config):
    """What differs between layers, and the tensors that are no parameters."""
    sliding = [kind == "sliding_attention" for kind in config.layer_types]
    heads = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    whole, narrow = heads[-1], heads[sliding.index(True)]
    shared = config.num_kv_shared_layers
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length(whole.head_dim)
    writer.add_value_length(whole.head_dim)
    writer.add_key_length_swa(narrow.head_dim)
    writer.add_value_length_swa(narrow.head_dim)
    writer.add_rope_dimension_count(whole.head_dim)
    writer.add_rope_dimension_count_swa(narrow.head_dim)
    if config.attention_k_eq_v:
        writer.add_head_count_kv([layer.num_key_value_heads for layer in heads])
    else:
        writer.add_head_count_kv(whole.num_key_value_heads)
    if config.use_double_wide_mlp:
        first = config.num_hidden_layers - shared
        writer.add_feed_forward_length([config.intermediate_size * (1 if layer < first else 2)
                                        for layer in range(config.num_hidden_layers)])
    else:
        writer.add_feed_forward_length(config.intermediate_size)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    pairs = whole.head_dim // 2
    turned = int(pairs * rope["full_attention"]["partial_rotary_factor"])
    writer.add_tensor("rope_freqs.weight",
                      np.array([1.0] * turned + [1e30] * (pairs - turned), dtype=np.float32))


def write_scales(writer, model):
    for number, layer in enumerate(model.model.layers):
        writer.add_tensor(f"blk.{number}.layer_output_scale.weight",
                          layer.layer_scalar.float().numpy())


def name_of(key):
    """The names that the package's table lacks; None for the others."""
    part = key.split(".")
    if key.endswith("router.scale"):
        return f"blk.{part[2]}.ffn_gate_inp.scale"
    if key.endswith("per_expert_scale"):
        return f"blk.{part[2]}.ffn_down_exps.scale"
    if ".experts." in key:
        kind = "gate_up" if "gate_up_proj" in key else "down"
        return f"blk.{part[2]}.ffn_{kind}_exps.weight"
    return None
