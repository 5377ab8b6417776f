"""What llama.cpp's converter does to LFM2, Granite 4 H, Nemotron-H and Nemotron 3.

Convolutions are matrices. Numbers of layers say which kind a layer is: those without KV heads are
recurrences, and in Nemotron-H those with a feed-forward length are MLPs or experts. There is -exp(A_log), and
vectors of Mamba-2 layers have a second dimension. Granite's gate and up are taken apart.
"""

import gguf
import numpy as np

KINDS = ("lfm2", "lfm2_moe", "granitemoehybrid", "nemotron_h")
F32 = ("conv", "conv1d", "layer")  # last parts of names whose weights are never rounded


def is_kind(config):
    return config.model_type in KINDS


def has_experts(config):
    return "moe" in config.layer_types or config.model_type == "lfm2_moe"


def write_experts(writer, config):
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "lfm2_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        return
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)


def write_metadata(writer, config):
    kinds = config.layer_types
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(kinds))
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads if kind == "full_attention" else 0
                              for kind in kinds])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if has_experts(config):
        write_experts(writer, config)
    if config.model_type in ("lfm2", "lfm2_moe"):
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        return
    nemotron = config.model_type == "nemotron_h"
    heads = config.mamba_num_heads if nemotron else config.mamba_n_heads
    dim = config.mamba_head_dim if nemotron else config.mamba_d_head
    writer.add_ssm_conv_kernel(config.conv_kernel if nemotron else config.mamba_d_conv)
    writer.add_ssm_state_size(config.ssm_state_size if nemotron else config.mamba_d_state)
    writer.add_ssm_group_count(config.n_groups if nemotron else config.mamba_n_groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * dim)
    if nemotron:
        writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        width = config.moe_intermediate_size if has_experts(config) else config.intermediate_size
        writer.add_feed_forward_length([width if kind in ("mlp", "moe") else 0 for kind in kinds])
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_rope_scaling_finetuned(False)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.num_local_experts:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


class Moves:
    """What becomes of a parameter. name: the one that the package's table knows. pieces: as of
    gguf_hybrids.Moves."""

    def __init__(self, key, config):
        self.key, self.config, self.pieces = key, config, {}
        self.name = key
        if config.model_type == "nemotron_h":
            self.name = key.replace("model.", "backbone.", 1)
            if ".experts." in key:
                self.name = key.replace(".mixer.", ".mlp.")
            return
        if config.model_type == "lfm2_moe" and ".experts." in key:
            self.name = key.replace("model.", "", 1)
            return
        if config.model_type != "granitemoehybrid":
            return
        self.name = key.replace("block_sparse_moe.experts.", "mlp.experts.").replace(
            "block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight")
        layer = key.split(".shared_mlp.")[0]
        beside = ".mlp.shared_expert." if config.num_local_experts else ".mlp."
        if key.endswith("shared_mlp.input_linear.weight"):
            self.pieces = {f"{layer}{beside}{part}.weight": config.shared_intermediate_size
                           for part in ("gate_proj", "up_proj")}
        elif key.endswith("shared_mlp.output_linear.weight"):
            self.pieces = {f"{layer}{beside}down_proj.weight": config.hidden_size}

    def to_file(self, weight):
        return weight[:, 0] if weight.ndim == 3 and weight.shape[1] == 1 else weight

    def from_file(self, weight):
        return weight

    def parts(self, weight):
        cuts = np.cumsum(list(self.pieces.values()))[:-1]
        return dict(zip(self.pieces, np.split(weight, cuts)))

    def vector(self, weight):
        """A vector as the file has it."""
        if self.key.endswith("A_log"):
            return -np.exp(weight)[:, None]
        if self.key.endswith(".D"):
            return weight[:, None]
        if self.key.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            groups = getattr(self.config, "n_groups", None) or self.config.mamba_n_groups
            return weight.reshape(groups, -1)
        return weight
