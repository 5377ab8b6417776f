"""What can go wrong with a model, done on purpose.

Each mistake makes a transformers model compute one thing otherwise; make_parity_fixtures.py
measures how far that moves the logits.
"""

import torch

import parity_experts
import parity_gemma4
from parity_variants import theta
import parity_latent


def norm_neutral(model):
    """The weight of a norm that changes nothing."""
    if parity_gemma4.is_gemma4(model):
        return 1.0
    return 0.0 if model.config.model_type.startswith(("gemma", "qwen3_5", "qwen3_next")) else 1.0


def with_rope(model, change):
    """change(frequencies, attention_factor, rope_parameters): what angles are made of instead."""
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def changed(x, position_ids, layer_type=None):
        kind = {} if layer_type is None else {"layer_type": layer_type}
        forward(x, position_ids, **kind)  # settles the frequencies for this length
        prefix = "" if layer_type is None else f"{layer_type}_"
        if position_ids.dim() == 3:  # for pictures too; in a text all are alike
            position_ids = position_ids[0]
        rope = model.config.rope_parameters
        frequencies, factor = change(getattr(rotary, f"{prefix}inv_freq"),
                                     getattr(rotary, f"{prefix}attention_scaling"),
                                     rope if layer_type is None else rope[layer_type])
        angles = position_ids[..., None].to(frequencies.dtype) * frequencies
        if model.config.model_type == "deepseek_v2":  # whose angles are complex numbers
            return torch.polar(torch.ones_like(angles), angles) * factor
        if model.config.model_type != "gpt_oss":  # whose angles are those of pairs
            angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)

    rotary.forward = changed


def plain_frequencies(rope, pairs):
    return rope["rope_theta"] ** -(torch.arange(0, 2 * pairs, 2, dtype=torch.float64) / (2 * pairs))


def without_rope(model):
    with_rope(model, lambda frequencies, factor, rope: (torch.zeros_like(frequencies), 1.0))


def with_plain_rope(model):
    with_rope(model, lambda frequencies, factor, rope:
              (plain_frequencies(rope, frequencies.numel()).float(), 1.0))


def without_attention_factor(model):
    with_rope(model, lambda frequencies, factor, rope: (frequencies, 1.0))


def with_growth(**changes):
    """Other parameters of how queries grow; RoPE's angles are made already."""
    def change(model):
        model.config.rope_parameters.update(changes)
    return change


def with_other_pair_factors(model):
    """LongRoPE's short factors for the long ones and the other way round."""
    def change(frequencies, factor, rope):
        plain = plain_frequencies(rope, frequencies.numel())
        short, long = (plain / torch.tensor(rope[f"{kind}_factor"]) for kind in ("short", "long"))
        nearer_short = (frequencies - short).abs().max() < (frequencies - long).abs().max()
        return (long if nearer_short else short).float(), factor

    with_rope(model, change)


def with_value(suffixes, value):
    def change(model):
        for name, weight in model.named_parameters():
            if any(name.endswith(suffix) for suffix in suffixes):
                weight.data.fill_(value)
    return change


def with_wider_window(model):
    model.config.sliding_window += 1


def with_heads_interleaved(model):
    """Query head h reads KV head h % kv_heads instead of h / group."""
    heads, kv = model.config.num_attention_heads, model.config.num_key_value_heads
    order = torch.arange(heads).view(kv, heads // kv).T.reshape(-1)
    for layer in model.model.layers:
        o = layer.self_attn.o_proj
        q = getattr(layer.self_attn, "q_proj", None) or layer.self_attn.qkv_proj
        rows = o.weight.shape[1]  # of queries, the first of a fused matrix
        weight = q.weight.data[:rows]
        weight.copy_(weight.view(heads, -1, weight.shape[1])[order].flatten(0, 1))
        if q.bias is not None:
            q.bias.data = q.bias.data.view(heads, -1)[order].flatten()
        o.weight.data = o.weight.data.view(o.weight.shape[0], heads, -1)[:, order].flatten(1)


def mistakes(model):
    """Name and deed of everything that can go wrong with this model."""
    config = model.config
    parameters = [name for name, _ in model.named_parameters()]
    if getattr(model.model, "rotary_emb", None) is not None:
        yield "no rope", without_rope
    neutral = norm_neutral(model)
    yield "norm weights 1", with_value(["layernorm.weight", "model.norm.weight", "embedding_norm.weight",
                                        "operator_norm.weight", "model.norm_f.weight"], neutral)
    rope = getattr(config, "rope_parameters", None) or theta(1.0)  # no RoPE: nothing to do wrong
    kind = rope.get("full_attention", rope).get("rope_type")
    if kind != "default":
        yield "no rope scaling", with_plain_rope
    if kind in ("yarn", "longrope") and model.model.rotary_emb.attention_scaling != 1:
        yield "no attention factor", without_attention_factor
    if config.model_type == "ministral3":
        yield "queries that do not grow", with_growth(llama_4_scaling_beta=0.0)
        length = config.rope_parameters["original_max_position_embeddings"]
        yield "queries that grow a token late", with_growth(original_max_position_embeddings=length + 1)
    if kind == "longrope":
        yield "other pair factors", with_other_pair_factors
    if any(window_layers(config)):
        yield "window + 1", with_wider_window
    if parity_gemma4.is_gemma4(model):
        yield "one theta", with_rope_of_sliding
        yield from parity_gemma4.mistakes(model)
        return
    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        # A bias on k shifts all scores of a query alike unless RoPE turns it: its effect is small.
        if any(name.endswith(part + ".bias") for name in parameters):
            yield f"no {part} bias", with_value([part + ".bias"], 0.0)
    for norm in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
        if any(f".{norm}." in name for name in parameters):
            yield f"{norm} weights 1", with_value([norm + ".weight"], neutral)
    if parity_latent.is_latent(model):
        yield from parity_latent.mistakes(model)
        return
    if any("linear_attn" in name for name in parameters):
        yield from mistakes_of_recurrences(model)
        return
    if config.model_type == "nemotron_h":
        yield from mistakes_of_nemotron(model)
        return
    if config.model_type == "granite":
        yield from with_other_multipliers(config)
        return
    if any(name.endswith("mamba.D") for name in parameters):
        yield from mistakes_of_mamba(model)
        return
    if any(name.endswith("conv.conv.weight") for name in parameters):
        yield "last token convolved alone", with_convolution_of_last
        yield "newest token's weight first", with_convolution_turned
        yield "b and c exchanged", with_gates_exchanged
        yield from parity_latent.mistakes_of_routers(model)
        return
    yield from mistakes_of_families(model)
    yield from parity_experts.mistakes(model)
    if config.num_attention_heads != config.num_key_value_heads > 1:
        yield "groups interleaved", with_heads_interleaved


def mistakes_of_recurrences(model):
    yield "no state", with_value([".A_log"], 20.0)
    yield "no decay", with_value([".A_log"], -20.0)
    yield "no time bias", with_value(["dt_bias"], 0.0)
    yield "gated norm 1", with_value(["linear_attn.norm.weight"], 1.0)
    yield "last token convolved alone", with_convolution_of_last
    if model.config.model_type != "qwen3_next":  # there a key head's block has its value heads
        yield "value heads in another order", with_value_heads_turned
    yield "no output gate", without_output_gate
    if hasattr(model.config, "shared_expert_intermediate_size"):
        yield "no shared expert", with_value(["shared_expert.down_proj.weight"], 0.0)
        yield "shared expert as it is", with_whole_shared_expert
        yield from parity_experts.mistakes(model)


def mistakes_of_mamba(model):
    config = model.config
    yield from mistakes_of_mamba_layers(model)
    yield "no MLP", with_value(["shared_mlp.output_linear.weight"], 0.0)
    yield from with_other_multipliers(config)
    yield from parity_experts.mistakes(model)


def mistakes_of_mamba_layers(model):
    part = mamba_layers(model)[0]
    yield "no state", with_value([".A_log"], 20.0)
    yield "no decay", with_value([".A_log"], -20.0)
    yield "no time bias", with_value(["dt_bias"], 0.0)
    yield "nothing skips", with_value([".D"], 0.0)
    yield "gated norm 1", with_value(["mamba.norm.weight", "mixer.norm.weight"], 1.0)
    yield "norm before the gate", with_norm_before_gate
    yield "last token convolved alone", with_convolution_of_last
    yield "B and C exchanged", with_b_and_c_exchanged
    if part.conv1d.bias is not None:
        yield "no bias of the convolution", with_value(["conv1d.bias"], 0.0)
    if part.n_groups > 1:
        yield "one group", with_one_group


def mistakes_of_nemotron(model):
    yield from mistakes_of_mamba_layers(model)
    yield "not squared", with_activations(torch.nn.functional.relu)
    yield "squared below 0", with_activations(torch.square)
    if len([layer for layer in model.model.layers if layer.block_type == "mlp"]) > 1:
        yield "MLPs in another order", with_mlps_rolled
    yield from parity_latent.mistakes_of_routers(model)


def with_activations(function):
    def change(model):
        for module in model.modules():
            if hasattr(module, "act_fn"):
                module.act_fn.forward = function
    return change


def with_mlps_rolled(model):
    mlps = [layer for layer in model.model.layers if layer.block_type == "mlp"]
    mixers = [layer.mixer for layer in mlps]
    for layer, mixer in zip(mlps, mixers[1:] + mixers[:1]):
        layer.mixer = mixer


def mamba_layers(model):
    parts = [getattr(layer, "mamba", getattr(layer, "mixer", None)) for layer in model.model.layers]
    return [part for part in parts if hasattr(part, "A_log")]


def with_norm_before_gate(model):
    for part in mamba_layers(model):
        norm = part.norm
        forward = norm.forward
        norm.forward = lambda x, gate, forward=forward: forward(x) * torch.nn.functional.silu(gate)


def with_one_group(model):
    """All heads read B and C of the first group; each group is normalised by itself."""
    for part in mamba_layers(model):
        states = part.n_groups * part.ssm_state_size
        for first in (2 * part.intermediate_size, 2 * part.intermediate_size + states):
            rows = part.in_proj.weight.data[first:first + states].view(
                part.n_groups, part.ssm_state_size, -1)
            rows[1:] = rows[:1].clone()


def with_b_and_c_exchanged(model):
    for part in mamba_layers(model):
        states = part.n_groups * part.ssm_state_size
        first = 2 * part.intermediate_size
        rows = part.in_proj.weight.data[first:first + 2 * states]
        rows.copy_(torch.cat(rows.clone().chunk(2)[::-1]))


def with_other_multipliers(config):
    if config.embedding_multiplier != 1:
        yield "embedding as it is", lambda x: setattr(x.model, "embedding_multiplier", 1.0)
    if config.attention_multiplier != 1:
        yield "scale of heads", with_attention_scale
    if config.residual_multiplier != 1:
        yield "branches as they are", lambda x: [setattr(layer, "residual_multiplier", 1.0)
                                                 for layer in x.model.layers]
    if config.logits_scaling != 1:
        yield "logits as they are", lambda x: setattr(x.config, "logits_scaling", 1.0)


def with_attention_scale(model):
    for layer in model.model.layers:
        if layer.self_attn is not None:
            layer.self_attn.scaling = layer.self_attn.head_dim ** -0.5


def with_convolution_of_last(model):
    for name, weight in model.named_parameters():
        if name.endswith(("conv1d.weight", "conv.conv.weight")):
            weight.data[..., :-1] = 0


def with_convolution_turned(model):
    for name, weight in model.named_parameters():
        if name.endswith("conv.conv.weight"):
            weight.data = weight.data.flip(-1)


def with_gates_exchanged(model):
    for name, weight in model.named_parameters():
        if name.endswith("conv.in_proj.weight"):
            b, c, x = weight.data.chunk(3)
            weight.data = torch.cat((c, b, x))


def with_value_heads_turned(model):
    """Value head h reads key head h % key_heads instead of h / group."""
    config = model.config
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    order = torch.arange(values).view(keys, values // keys).T.reshape(-1)
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            part = layer.linear_attn
            if not hasattr(part, "in_proj_qkv"):
                continue
            first = 2 * part.key_dim
            for weight in (part.in_proj_qkv.weight, part.conv1d.weight):
                rows = weight.data[first:]
                rows.copy_(rows.view(values, -1, *rows.shape[1:])[order].flatten(0, 1))


def with_whole_shared_expert(model):
    for layer in model.model.layers:
        if hasattr(layer.mlp, "shared_expert"):
            gate = layer.mlp.shared_expert_gate
            forward = gate.forward
            gate.forward = lambda x, forward=forward: forward(x) * 0 + 100


def without_output_gate(model):
    for layer in model.model.layers:
        if hasattr(layer, "self_attn"):
            weight = layer.self_attn.q_proj.weight.data
            dim = model.config.head_dim
            weight.view(-1, 2, dim, weight.shape[1])[:, 1] = 0


def with_parts(name, change):
    """change(part) of every layer's module of this name."""
    def deed(model):
        for layer in model.model.layers:
            change(layer.get_submodule(name))
    return deed


def without_output_norms(model):
    for layer in model.model.layers:
        for norm in output_norms(model):
            setattr(layer, norm, torch.nn.Identity())


def output_norms(model):
    """Names of the norms of what attention and MLP give."""
    names = {"glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
             "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm")}
    gemma = ("post_attention_layernorm", "post_feedforward_layernorm")
    kind = model.config.model_type
    return gemma if kind.startswith("gemma") else names.get(kind, ())


def with_rotary_width(model):
    """Pairs (i, i + half) for neighbours, or neighbours for halves: the other way round."""
    def change(linear):
        heads = linear.weight.shape[0] // model.config.head_dim
        turned = 2 * model.model.rotary_emb.inv_freq.numel()
        order = torch.arange(model.config.head_dim)
        order[:turned] = torch.arange(turned).view(2, -1).T.reshape(-1)
        for tensor in (linear.weight, linear.bias):
            if tensor is not None:
                shaped = tensor.data.view(heads, model.config.head_dim, -1)
                tensor.data = shaped[:, order].reshape(tensor.shape)
    for name in ("q_proj", "k_proj"):
        with_parts(f"self_attn.{name}", change)(model)


def with_one_theta(model):
    with_rope(model, lambda frequencies, factor, rope:
              (model.model.rotary_emb.full_attention_inv_freq, factor))


def with_rope_of_sliding(model):
    """The theta of windowed layers is that of the others."""
    def change(frequencies, factor, rope):
        if rope["rope_type"] != "default":
            return frequencies, factor
        return plain_frequencies(dict(rope_theta=1000.0), frequencies.numel()).float(), factor

    with_rope(model, change)


def mistakes_of_families(model):
    config, attention = model.config, model.model.layers[0].self_attn
    if output_norms(model):
        yield "no output norms", without_output_norms
    if config.model_type.startswith("glm"):
        yield "halves turned", with_rotary_width
    if "no_rope_layers" in config:
        yield "rope everywhere", with_parts("self_attn", lambda x: setattr(x, "use_rope", True))
    if hasattr(model.get_input_embeddings(), "embed_scale"):
        yield "embedding as it is", lambda x: setattr(x.model.embed_tokens, "embed_scale",
                                                      torch.tensor(1.0))
        yield "silu", with_parts("mlp", lambda x: setattr(x, "act_fn", torch.nn.SiLU()))
        yield "scale of heads", with_parts("self_attn",
                                           lambda x: setattr(x, "scaling", x.head_dim ** -0.5))
    if "full_attention" in config.rope_parameters:
        yield "one theta", with_one_theta
    if getattr(config, "final_logit_softcapping", None):
        yield "logits not capped", lambda x: setattr(x.config, "final_logit_softcapping", None)
    if getattr(attention, "attn_logit_softcapping", None):
        yield "scores not capped", with_parts(
            "self_attn", lambda x: setattr(x, "attn_logit_softcapping", None))


def window_layers(config):
    if config.model_type in ("mistral", "ministral3", "mixtral", "phi3", "qwen3_moe"):
        return [config.sliding_window is not None] * config.num_hidden_layers
    return [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
