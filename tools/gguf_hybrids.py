"""What llama.cpp's converter does to Qwen's hybrids (Qwen3.5, its mixtures, Qwen3-Next).

Norms have 1 added, but those of Gated DeltaNet layers' heads. There is -exp(A_log). The convolution
is a matrix. Qwen3.5's value heads come in another order: the first ones of all key heads, then the
second ones and so on, in every tensor that has them. Qwen3-Next's in_proj_qkvz is taken apart.
"""

import numpy as np
from gguf import GGMLQuantizationType as Type


def is_hybrid(config):
    return hasattr(config, "linear_num_key_heads")


def write_metadata(writer, config, drafts):
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    writer.add_full_attention_interval(4)
    arch = writer.arch
    recurrent = [kind == "linear_attention" for kind in config.layer_types] + [False] * drafts
    if recurrent != [(l + 1) % 4 != 0 for l in range(config.num_hidden_layers)] + [False] * drafts:
        writer.add_array(f"{arch}.attention.recurrent_layers", recurrent)
    if drafts:
        writer.add_uint32(f"{arch}.nextn_predict_layers", drafts)
    if arch.startswith("qwen35"):
        sections = config.rope_parameters.get("mrope_section", [11, 11, 10])
        writer.add_rope_dimension_sections(list(sections) + [0])
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def write_draft_block(writer, config, gguf_name, generator):
    """A block of the shape that MTP has, behind the layers; its values do not matter."""
    hidden, head = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    at = f"model.layers.{config.num_hidden_layers}."
    shapes = {"self_attn.q_proj": (2 * q, hidden), "self_attn.k_proj": (kv, hidden),
              "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
              "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
              "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
              "mlp.gate_proj": (config.intermediate_size, hidden),
              "mlp.up_proj": (config.intermediate_size, hidden),
              "mlp.down_proj": (hidden, config.intermediate_size)}
    tensors = {gguf_name(f"{at}{name}.weight"): shape for name, shape in shapes.items()}
    block = f"blk.{config.num_hidden_layers}.nextn."
    tensors |= {f"{block}eh_proj.weight": (hidden, 2 * hidden), f"{block}enorm.weight": (hidden,),
                f"{block}hnorm.weight": (hidden,), f"{block}shared_head_norm.weight": (hidden,)}
    for name, shape in tensors.items():
        values = generator.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, values.astype(np.float16), raw_dtype=Type.F16)


class Moves:
    """How rows (or elements) and inputs of a parameter move into a file, and back.

    pieces: names of modules, and rows of each, where one parameter becomes several tensors."""

    def __init__(self, key, config):
        heads, values = config.linear_num_key_heads, config.linear_num_value_heads
        key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        keys, of_head = heads * key_dim, values // heads
        self.rows = self.inputs = None
        self.pieces = {}
        part = key.split("linear_attn.")[-1]

        def tiled(dim):
            return np.arange(values * dim).reshape(heads, of_head, dim).swapaxes(0, 1).ravel()

        if "linear_attn." not in key:
            return
        if part == "in_proj_qkvz.weight":
            blocks = np.arange(2 * keys + 2 * values * value_dim).reshape(heads, -1)
            cuts = np.cumsum([key_dim, key_dim, of_head * value_dim])
            self.rows = np.concatenate([piece.ravel() for piece in np.split(blocks, cuts, axis=1)])
            at = key.removesuffix("qkvz.weight")
            self.pieces = {f"{at}qkv.weight": 2 * keys + values * value_dim,
                           f"{at}z.weight": values * value_dim}
        elif config.model_type == "qwen3_next":
            return
        elif part in ("in_proj_qkv.weight", "conv1d.weight"):
            self.rows = np.concatenate((np.arange(2 * keys), 2 * keys + tiled(value_dim)))
        elif part == "in_proj_z.weight":
            self.rows = tiled(value_dim)
        elif part in ("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"):
            self.rows = tiled(1)
        elif part == "out_proj.weight":
            self.inputs = tiled(value_dim)

    def to_file(self, weight):
        if weight.ndim == 3 and weight.shape[1] == 1:
            weight = weight[:, 0]
        if self.rows is not None:
            weight = weight[self.rows]
        return weight if self.inputs is None else weight[:, self.inputs]

    def from_file(self, weight):
        if self.rows is not None:
            weight = weight[np.argsort(self.rows)]
        return weight if self.inputs is None else weight[:, np.argsort(self.inputs)]

    def parts(self, weight):
        cuts = np.cumsum(list(self.pieces.values()))[:-1]
        return dict(zip(self.pieces, np.split(weight, cuts)))
